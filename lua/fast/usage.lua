-- The fast path's usage of keys that are not charged: those of denials, and of checks of no units.

local KEYS, try, rep = KEYS, redis.pcall, string.rep -- globals, so dearer

-- The first step, behind `low` and at most `high`, up to which as many units were charged since `base`. Bisection tries
-- the newest step first, and then the oldest: mostly it is one of these. In a queue, the first entry with such a number.
local function first_with(units, body, at, places, entry, size, wrap, base, low, high)
  local middle, oldest = high - 1, low + 1
  while middle > low do
    if (unpack(entry, body, at + middle % places * size) - base) % wrap < units then low = middle else high = middle end
    middle, oldest = oldest or (high + low - (high + low) % 2) / 2, nil
  end
  return high
end

-- A denial of KEYS[i], where no rule is due: the newest steps are those of the time. Returns the used units under each
-- rule, and when the units fit under each that denies them, if ever, packed; or nothing if the plain script has to
-- decide. `value` is the front and the narrow body of the first rule, and `base` is of that rule. The rules use
-- `first` to `third` units.
local function deny(policy, i, value, wide, base, units, first, second, third)
  local rules, reply, entry, size, wrap = policy.rules, sub(value, 44, 43 + policy.rules * 7), '<I2', 2, 2 ^ 16
  if wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end
  for k = 1, rules do
    local over = first - policy[k + 3] + units -- in this order nothing exceeds 2^53
    if over > 0 then
      local step, retention, narrow = unpack('<I6I6I4', policy.arg, 11 + rules * 7 + k * 16)
      local body, at, bytes = value, 44 + rules * 7, narrow / 2 * size
      if k > 1 then -- the body of the last rule is near the end of the value, mostly within 200 bytes
        body = stored[i] or k == rules and bytes < 130 and try('GETRANGE', KEYS[i], '-200', '-1') or try('GET', KEYS[i])
        at = k == rules and #body - 1 - rules * 16 - bytes or k == 2 and 57 + rules * 7 + (#value - at + 1) / 2 * size or at
        if k < rules then stored[i] = body end
      end
      if at < 8 or #body < at + bytes - 1 then return end
      if k > 1 then base = unpack('<I7', body, at - 7) end
      local low, high = (now - retention - (now - retention) % step) / step, (now - now % step) / step + 1
      reply = reply .. pack('<I6', first_with(over, body, at, narrow / 2, entry, size, wrap, base, low, high) * step + retention)
    end
    first, second = second, third
  end
  return reply
end

-- Returns whether the units of a check of KEYS[i] fit, and the usage; or nothing if the plain script has to decide.
-- `value` is the front and the narrow body of the first rule, and the numbers behind `units` are of the front, if they were
-- read. More is read if another rule denies or is due.
local function usage_of(policy, i, value, units, mark, since, due, others, newest, base, first, second, third)
  local rules, arg, usage, fits, periods_at, _ = policy.rules, policy.arg, '', true, nil, nil
  if value == '' then
    for k = 1, rules do
      if policy.class == 2 and unpack('<I6', arg, 11 + rules * 7 + k * 16) >= 2 ^ 44 then -- the time has to be in a period
        _, periods_at = read_period(arg, periods_at or 29 + rules * 23, now)
        if not periods_at then return end
      end
      if units > (rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)) then fits = false end
    end
    return fits, rep('\0', rules * 19)
  end
  if not mark then mark, since, due, others, _, newest, base, first, second, third = unpack('<I6I6I6I6I6I6I7I7I7I7', value) end
  local at, wide = 44 + rules * 7, mark - policy.mark
  if since > now or wide ~= 0 and wide ~= 1 or #value < 43 + rules * 7 then return end
  local entry, size, wrap = '<I2', 2, 2 ^ 16
  if wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end
  for k = 1, rules do
    local used, limit = k < 4 and first or unpack('<I7', value, 37 + k * 7), rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)
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
      if newest % step > 0 or newest > now and newest ~= current then return end -- another period, or spoiled
      local gone, number = (now - retention - (now - retention) % step) / step, newest / step -- `gone` is released
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
          local low = gone > number - places - 1 and gone or number - places - 1
          when = first_with(over, value, at, places, entry, size, wrap, base, low, number) * step + retention
        end
      end
    end
    usage, at, due = usage .. pack('<I7I6I6', used, used > 0 and newest or 0, when), at + places * size, others
    first, second = second, third
  end
  return fits, usage
end
