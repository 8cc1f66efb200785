-- Calendar rules: they count the units of one period, such as a month in a time zone. `newest` is the end of that
-- period. Callers send the boundaries of the periods around the time of their own clock. As their zone data may differ,
-- a count is kept until the later of two ends.

local SAME_END = 12 * 3600000 -- in ms: two ends that are nearer are ends of one period, as a day is longer
local AHEAD = 48 * 3600000 -- in ms: a period that begins later was charged while the clock was wrong

local calendar = {}

-- For a rule of others, the script knows only the stored end: the period starts now, and all ends are believed.
function calendar.new(rule)
  rule.window, rule.start, rule.stop, rule.last_believed = A_MINUTE, now, now, math.huge
end

-- Reads the boundaries of a caller's rule: the start of a period, then the ends of this and of later periods. The
-- operation fails if the time is not within these, or if a period that begins within AHEAD may be missing. Returns the
-- place behind the boundaries in the argument.
function calendar.read_details(rule, arg, at)
  local count, k, bounds = byte(arg, at), 1, {}
  at = at + 1
  for i = 1, count do bounds[i], at = unpack(TIME, arg, at) end
  while k <= count and bounds[k] <= now do k = k + 1 end
  if k == 1 or bounds[count] <= now + AHEAD then fail(OTHER_TIME) end
  rule.start, rule.stop = bounds[k - 1], bounds[k]
  while bounds[k] <= now + AHEAD do k = k + 1 end
  rule.last_believed = bounds[k] + SAME_END - 1
  return at
end

-- A stored end within this period, and not near the end, is a later end of the period before: the count stays until
-- then.
function calendar.advance(section)
  local rule, newest = section.rule, section.newest
  local is_same = rule.stop - newest < SAME_END
  if section.used > 0 and rule.start < newest and newest <= rule.last_believed and (is_same or now < newest) then
    section.newest = is_same and math.max(newest, rule.stop) or newest
  else
    section.used, section.newest = 0, 0
  end
end

function calendar.charge(section, units)
  section.used, section.newest = section.used + units, math.max(section.newest, section.rule.stop)
end

function calendar.take(section, units, stop)
  if math.abs(stop - section.newest) >= SAME_END then return end -- another period
  section.used = math.max(0, section.used - units)
end

function calendar.fits_at(section)
  return section.newest
end

function calendar.describe(section)
  section.units, section.start, section.due, section.release = section.used, 0, section.newest, section.newest
  section.needs_wide = section.used >= 2 ^ 16 -- so that a wide value has no bound, for the fast path
end
