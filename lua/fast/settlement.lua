-- The fast path's settlements that take units.
--
-- An entry has 4 bytes: two numbers modulo 2^16. A head has 28, and the first is at byte 14 + rules * 14. The ends
-- of the charged steps are last in a part, of 6 bytes each.

-- Takes units from the newest step of each section of KEYS[i], if no section is due and each step keeps some units.
-- Returns the number of rules and the used units of each, packed, or nothing if the plain script has to decide.
return function(policy, i, value, front, units)
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
