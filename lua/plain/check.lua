-- Checks, and settlements and renewals of checks. An operation gets `parts`, as `part_of` makes them. It returns the
-- reply, and leaves the values to be written to the caller.

-- How many times the units fit a section, at most `count`.
local function times_that_fit(section, units, count)
  local room = section.rule.limit - section.units
  if units > room then return 0 end
  return units > 0 and math.min(count, (room - room % units) / units) or count
end

-- How many of `count` equal renewals find their units in the step that ends at `stop`.
local function times_held(section, units, count, stop)
  return section.rule.kind.times_held(section, units, count, stop)
end

-- The reply about the keys: the used units of each rule, and the time when more fit, if they are denied.
local function usage_of(parts, are_denied)
  local reply = ''
  for _, part in ipairs(parts) do
    local units = part.units
    reply = reply .. LONG
    for k, rule in ipairs(part.rules) do
      local section, fits_at = part.sections[k], 0
      if are_denied and units <= rule.limit and times_that_fit(section, units, 1) == 0 then
        fits_at = rule.kind.fits_at(section, units)
      end
      reply = reply .. pack(USAGE, section.used, section.newest, fits_at)
    end
  end
  return reply
end

-- Reads the keys of a check that was admitted before, and for each rule when the charged step ends.
local function read_charged(parts)
  for _, part in ipairs(parts) do
    local arg, count = ARGV[part.i], #part.rules
    read(part)
    part.ends = { unpack('<' .. string.rep(STEP_END, count), arg, #arg - count * STEP_END_SIZE + 1) }
  end
end

-- Changes all sections or none: as many times as each of them allows, at most `asked` times.
-- times   the function that says how many times a section allows
-- change  the name of the kind's function that changes a section
-- Returns how the reply begins, and the number of times.
local function change_all(parts, asked, times, change)
  local count = asked
  for _, part in ipairs(parts) do
    for k = 1, #part.rules do count = times(part.sections[k], part.units, count, part.ends[k]) end
  end
  for _, part in ipairs(parts) do
    if part.units * count > 0 then
      for k, rule in ipairs(part.rules) do rule.kind[change](part.sections[k], part.units * count, part.ends[k]) end
      write(part)
    end
  end
  return DONE .. pack(TIMES_ADMITTED, count), count
end

-- Checks keys, and charges them as many times as the units of each fit all rules. Returns the reply, and how often.
local function check(parts, asked)
  if asked == 0 then return NOT_ASKED, 0 end
  for _, part in ipairs(parts) do read(part) end
  local reply, count = change_all(parts, asked, times_that_fit, 'charge')
  return reply .. usage_of(parts, count < asked), count
end

-- Moves the slots that each of `asked` equal checks has taken to the step of now: those of the first checks, as many as
-- still have all slots.
local function renew(parts, asked)
  read_charged(parts)
  return change_all(parts, asked, times_held, 'renew') .. usage_of(parts, false)
end

-- Settles the charges of a check by the units of the parts: takes those below 0 from the charged steps, and charges
-- others now, whatever the limit.
local function settle(parts)
  read_charged(parts)
  for _, part in ipairs(parts) do
    local has_changed = false
    for k, rule in ipairs(part.rules) do
      local section = part.sections[k]
      local used, added = section.used, math.min(part.units, rule.most - section.units)
      if added > 0 then rule.kind.charge(section, added) end
      if part.units < 0 then rule.kind.take(section, -part.units, part.ends[k]) end
      has_changed = has_changed or section.used ~= used
    end
    if has_changed then write(part) end
  end
  return DONE .. usage_of(parts, false)
end
