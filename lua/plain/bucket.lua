-- Buckets: `used` counts the missing units * ms of a section at the time `newest`. A unit is as much as the window is
-- long, and each ms brings back the refill.

local bucket = {}

function bucket.new(rule, period, refill)
  rule.period, rule.refill = period, refill
  rule.window = rule.limit and math.floor(rule.limit * period / refill) or 0 -- to fill up; unknown of others
  rule.most = (MOST_UNITS - MOST_UNITS % period) / period
end

function bucket.advance(section)
  local rule, missing = section.rule, section.used
  local elapsed = now - section.newest
  if elapsed >= missing / rule.refill or rule.limit and -elapsed > rule.window then
    section.newest, section.used = now, 0 -- full, or charged while the clock was wrong
  elseif elapsed > 0 and rule.limit then -- not one of others: without the limit, a wrong time would stay
    section.newest, section.used = now, missing - elapsed * rule.refill
  end
end

function bucket.charge(section, units)
  section.used = section.used + units * section.rule.period
end

function bucket.take(section, units, from) -- less the refill since `from`, as a float, since it may pass 2^63
  local rule, refill = section.rule, math.max(0, 1.0 * section.newest - from) * section.rule.refill
  section.used = math.max(0, section.used - math.max(0, math.min(units, rule.most) * rule.period - refill))
end

function bucket.fits_at()
  return 0 -- Rust computes the time from `used`
end

function bucket.describe(section)
  local rule = section.rule
  local missing_for = math.min(math.ceil(section.used / rule.refill), FOR_EVER)
  section.units, section.due, section.start = math.ceil(section.used / rule.period), 0, section.newest
  section.release = section.newest + missing_for
end
