-- The fast path's settlements that take units, and the half of a renewal that does.
--
-- An entry has 4 bytes: two numbers modulo 2^16. A head has 28, and the first is at byte 14 + rules * 14. The ends
-- of the charged steps are last in a part, of 6 bytes each.

-- The entries of a queue after units were taken from the step of this number, and so from all totals from there on.
-- Returns nothing if the queue has no such step, or the step has too few units.
local function take(queue, base, number, units)
  local entries, last = {}, #queue / 4
  for k = last, 1, -1 do
    local found, total = unpack('<I2I2', queue, k * 4 - 3)
    entries[k] = pack('<I2I2', found, (total - units) % 2 ^ 16)
    if found == number then
      local own = (total - (k > 1 and unpack('<I2', queue, k * 4 - 5) or base)) % 2 ^ 16
      if own < units then return end
      return sub(queue, 1, k * 4 - 4) .. table.concat(entries, '', own > units and k or k + 1, last)
    end
  end
end

-- Takes units from the newest step of each section of KEYS[i], if no section is due and each step keeps some units.
-- Returns the number of rules and the used units of each, packed, or nothing if the plain script has to decide.
local function settle(policy, i, value, front, units)
  local rules, arg = policy.rules, ARGV[i]
  local at, end_at = 14 + rules * 14, #arg - rules * 6 + 1
  for k = 1, rules do
    if at + 28 > #value then return end
    local newest, _, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
    local used, before = front[k + 1] - units, 0
    if front[k + rules + 1] <= now or newest ~= unpack('<I6', arg, end_at) then return end
    if length > 0 then
      if width > 1 or at + 28 + length > #value then return end
      before = (unpack('<I2', value, at + 28 + length - 2) - base) % 2 ^ 16
    end
    if used <= before then return end
    front[k + 1], at, end_at = used, at + 28 + room, end_at + 6
  end
  values[i] = pack(policy.used_format, spread(front, 1, rules + 1))
  return values[i]
end

return settle, take
