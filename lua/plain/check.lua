-- Checks, settlements, and renewals and returns of slots. An operation gets `parts`, as `part_of` makes them. It
-- returns the reply, and leaves the values to be written to the caller.

local _, read_slots, take_slots, renew_or_return_slots =
  slots_script(now, slack, expire, tasks, stored, values, expiries, try, spread)

-- How many times the units fit a section, at most `count`.
local function times_that_fit(section, units, count)
  local room = section.rule.limit - section.units
  if units > room then return 0 end
  return units > 0 and math.min(count, (room - room % units) / units) or count
end

-- The reply about a key: the used units of each rule, and the time when more fit, if they are denied.
local function usage_of(part, is_denied)
  local reply, units = '', part.units
  for k, rule in ipairs(part.rules) do
    local section, fits_at = part.sections[k], 0
    if is_denied and units <= rule.limit and times_that_fit(section, units, 1) == 0 then
      fits_at = rule.kind.fits_at(section, units)
    end
    reply = reply .. pack(USAGE, section.used, section.newest, fits_at)
  end
  return LONG .. reply
end

-- Checks keys, and charges them as many times as the units of each fit all rules. Returns the reply, and how often.
local function check(parts, asked)
  if asked == 0 then return NOT_ASKED, 0 end
  local count, views = asked, {}
  for _, part in ipairs(parts) do
    local rule = part.rules[1]
    if part.are_slots then
      views[part] = read_slots(part.i, rule.limit, rule.expiry, asked)
      count = math.min(count, views[part].times)
    else
      read(part)
      for k = 1, #part.rules do count = times_that_fit(part.sections[k], part.units, count) end
    end
  end
  local reply = DONE .. pack(TIMES_ADMITTED, count)
  for _, part in ipairs(parts) do
    if part.are_slots then
      reply = reply .. LONG .. take_slots(part.i, views[part], count, count < asked)
    else
      local charged = part.units * count
      if charged > 0 then
        for k, rule in ipairs(part.rules) do
          rule.kind.charge(part.sections[k], charged)
          rule.kind.describe(part.sections[k])
        end
      end
      reply = reply .. usage_of(part, count < asked) -- before the bodies change
      if charged > 0 then write(part) end
    end
  end
  return reply, count
end

-- Settles the charges of a check by the units of the parts: takes those below 0 from the charged steps, and charges
-- others now, whatever the limit. A part ends with the end of each charged step.
local function settle(parts)
  local reply = DONE
  for _, part in ipairs(parts) do
    local arg, rules, has_changed = ARGV[part.i], part.rules, false
    if part.are_slots then -- they stay
      reply = reply .. LONG .. take_slots(part.i, read_slots(part.i, rules[1].limit, rules[1].expiry, 1), 0, false)
    else
      local ends = { unpack('<' .. string.rep('I6', #rules), arg, #arg - #rules * TIME_SIZE + 1) }
      read(part)
      for k, rule in ipairs(rules) do
        local section = part.sections[k]
        local used, added = section.used, math.min(part.units, rule.most - section.units)
        if added > 0 then rule.kind.charge(section, added) end
        if part.units < 0 then rule.kind.take(section, -part.units, ends[k]) end
        has_changed = has_changed or section.used ~= used
      end
      if has_changed then write(part) end
      reply = reply .. usage_of(part, false)
    end
  end
  return reply
end

-- Renews the slots of a part, or returns them.
local function renew_or_return(parts, is_renewal)
  local part = parts[1]
  if not part.are_slots then fail(UNREADABLE) end
  return DONE .. LONG .. renew_or_return_slots(part.i, part.rules[1].expiry, is_renewal)
end
