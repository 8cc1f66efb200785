-- Concurrency rules: sliding rules whose units are slots. A slot that is returned is taken from its step; one that is
-- renewed moves to the step of now, so that it is released later.

local concurrency = {
  new = steps.new,
  advance = steps.advance,
  charge = steps.charge,
  settle = steps.settle,
  fits_at = steps.fits_at,
  describe = steps.describe,
}

-- Whether the step that ends at `stop` has so many units that count.
function concurrency.has(section, units, stop)
  local _, _, own = find(section, stop)
  return own >= units
end

-- Moves units that a step has to the step of now, or to the newest while the clock has stepped back.
function concurrency.renew(section, time, units, stop)
  time = math.max(time, section.newest - section.rule.step) -- kept, as the newest step may be left without units
  steps.settle(section, time, -units, stop)
  steps.charge(section, time, units)
end
