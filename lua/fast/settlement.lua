-- The fast path's settlements.

local pack, unpack, spread, sub = struct.pack, struct.unpack, unpack or table.unpack, string.sub

-- Settles units in the newest step of each section of KEYS[i], if none is due and some are left in it. Returns the
-- count of its rules and what each uses, or nothing if the plain script has to.
local function settle(policy, i, value, front, units)
  local rules, arg = policy.rules, ARGV[i]
  local at, end_at = 14 + rules * 14, #arg - rules * 6 + 1
  for k = 1, rules do
    if at + 28 > #value then return end
    local newest, _, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
    local used, before = front[k + 1] + units, 0
    if front[k + rules + 1] <= now or newest ~= unpack('<I6', arg, end_at) then return end
    if width > 1 or at + 28 + length > #value then return end
    if length > 0 then before = (unpack('<I2', value, at + 28 + length - 2) - base) % 2 ^ 16 end
    if used <= before or used >= 2 ^ 53 then return end
    front[k + 1], at, end_at = used, at + 28 + room, end_at + 6
  end
  local counts = pack(policy.used_format, spread(front, 1, rules + 1))
  if units ~= 0 then values[i] = counts end
  return counts
end
