-- Checks, and settlements and renewals of them. An operation gets its `parts`: `i` of its key, `units`, `rules`,
-- `block`. It returns its reply, and leaves what it writes to its caller.

-- How many times the units fit a section, at most `count`.
local function times_that_fit(section, units, count)
  local room = section.rule.limit - section.units
  if units > room then return 0 end
  return units > 0 and math.min(count, (room - room % units) / units) or count
end

-- The reply for a key: the units that each of its rules uses; and the time when more fit, if it `is_denied`.
local function usage_of(part, is_denied)
  local reply, units = LONG, part.units
  for k, rule in ipairs(part.rules) do
    local section, fits_at = part.sections[k], 0
    if is_denied and units <= rule.limit and times_that_fit(section, units, 1) == 0 then
      fits_at = rule.kind.fits_at(section, units)
    end
    reply = reply .. pack(USAGE, section.used, section.newest, fits_at)
  end
  return reply
end

-- Checks keys, all or nothing: admitted as often as the units of each fit all its rules, at most `asked` times. Returns
-- the reply, and how often.
local function check(parts, asked)
  if asked == 0 then return NOT_ASKED, 0 end
  local count = asked
  for _, part in ipairs(parts) do
    part.sections, part.expires = read(part.i, part.rules)
    for k = 1, #part.rules do count = times_that_fit(part.sections[k], part.units, count) end
  end

  local reply = DONE .. pack(TIMES_ADMITTED, count)
  for _, part in ipairs(parts) do
    if part.units * count > 0 then
      for k, rule in ipairs(part.rules) do rule.kind.charge(part.sections[k], now, part.units * count) end
      write(part.i, part.sections, part.expires)
    end
    reply = reply .. usage_of(part, count < asked)
  end
  return reply, count
end

-- Reads the keys of a check that was admitted before, and for each rule when the charged step ends.
local function read_charged(parts)
  for _, part in ipairs(parts) do
    local arg, count = ARGV[part.i], #part.rules
    part.sections, part.expires = read(part.i, part.rules)
    part.ends = { unpack('<' .. string.rep(STEP_END, count), arg, #arg - count * STEP_END_SIZE + 1) }
  end
end

-- Settles the charges of a check: changes the charged steps by the units of the parts.
local function settle(parts)
  local reply = DONE
  read_charged(parts)
  for _, part in ipairs(parts) do
    local has_changed = false
    for k, rule in ipairs(part.rules) do
      local section = part.sections[k]
      local used = section.used
      rule.kind.settle(section, now, part.units, part.ends[k])
      has_changed = has_changed or section.used ~= used
    end
    if has_changed then write(part.i, part.sections, part.expires) end
    reply = reply .. usage_of(part, false)
  end
  return reply
end

-- Moves the slots that each of `asked` equal checks has taken to the step of now: those of the first, as many as all of
-- whose slots still count.
local function renew(parts, asked)
  local count = asked
  read_charged(parts)
  for _, part in ipairs(parts) do
    for k, rule in ipairs(part.rules) do
      count = rule.kind.times_held(part.sections[k], now, part.units, part.ends[k], count)
    end
  end

  local reply = DONE .. pack(TIMES_ADMITTED, count)
  for _, part in ipairs(parts) do
    if count > 0 then
      for k, rule in ipairs(part.rules) do rule.kind.renew(part.sections[k], now, part.units * count, part.ends[k]) end
      write(part.i, part.sections, part.expires)
    end
    reply = reply .. usage_of(part, false)
  end
  return reply
end
