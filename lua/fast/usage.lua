-- The fast path's usage of keys that are not charged: those of denials, and of checks of no units.

-- Returns whether the units of a check of KEYS[i] fit, and the usage; or nothing if the plain script has to decide.
-- `value` is the front and the narrow body of the first rule. More is read if another rule denies or is due.
return function(policy, i, value, units)
  local rules, arg, usage, fits, periods_at = policy.rules, policy.arg, '', true, nil
  if value == '' then
    for k = 1, policy.class == 2 and rules or 0 do -- the time has to be in a period
      if unpack('<I6', arg, 11 + rules * 7 + k * 16) >= 2 ^ 44 then
        local stop, behind = read_period(arg, periods_at or 29 + rules * 23, now)
        if not stop then return end
        periods_at = behind
      end
    end
    for k = 1, rules do
      if units > (rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)) then fits = false end
    end
    return fits, rep('\0', rules * 19)
  end
  local mark, since, due, others, _, newest, base = unpack('<I6I6I6I6I6I6I7', value)
  local at, wide = 44 + rules * 7, mark - policy.mark
  if since > now or wide ~= 0 and wide ~= 1 or #value < 43 + rules * 7 then return end
  local entry, size, wrap = '<I2', 2, 2 ^ 16
  if wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end
  for k = 1, rules do
    local used, limit = unpack('<I7', value, 37 + k * 7), rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)
    local step, retention, places = unpack('<I6I6I4', arg, 11 + rules * 7 + k * 16)
    local when, over, is_calendar = 0, used - limit + units, step >= 2 ^ 44
    if is_calendar then -- one step, which ends with the period
      step, periods_at = read_period(arg, periods_at or 29 + rules * 23, now)
      if not step then return end
      retention = 0
    end
    local current = now - now % step + step
    places = places / 2
    if k > 1 then at = at + 13 end
    if over <= 0 and now < due and not is_calendar then
      newest = current
    else
      local stop = at + places * size - 1 -- the last byte of the body
      if #value < stop then
        value = stored[i] or try('GET', KEYS[i])
        stored[i] = value
        if not value or #value < stop then return end
      end
      if k > 1 then newest, base = unpack('<I6I7', value, at - 13) end
      if is_calendar and newest ~= step or newest > now and newest ~= current then return end -- another period, or spoiled
      local gone, number = now - retention, newest / step
      gone = (gone - gone % step) / step -- the newest step that is released
      if gone >= number then
        used, base = 0, 0
      elseif gone >= number - places then
        local total = unpack(entry, value, at + gone % places * size)
        used, base = used - (total - base) % wrap, total
        if used < 0 then return end
      end
      over = used - limit + units
      if over > 0 then
        fits = false
        if units <= limit then
          -- Bisection tries the newest step first, and then the oldest: mostly it is one of these.
          local low, high = gone > number - places - 1 and gone or number - places - 1, number
          local middle, oldest = high - 1, low + 1
          while middle > low do
            if (unpack(entry, value, at + middle % places * size) - base) % wrap < over then low = middle else high = middle end
            middle = oldest or (high + low - (high + low) % 2) / 2
            oldest = nil
          end
          when = high * step + retention
        end
      end
    end
    usage, at, due = usage .. pack('<I7I6I6', used, used > 0 and newest or 0, when), at + places * size, others
  end
  return fits, usage
end
