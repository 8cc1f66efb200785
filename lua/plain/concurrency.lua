-- Concurrency rules are sliding rules, and their units are slots. A return takes a slot from the slot's step. A renewal
-- moves the slot to the step of now, and so to a later release.

local concurrency = setmetatable({}, { __index = steps }) -- all functions of `steps`, and these

-- Whether a step is that of now, or the newest while the clock has stepped back: renewed slots stay there.
local function is_current(section, stop)
  return stop == section.newest and stop > now
end

-- How many of `count` equal renewals find their units in the step that ends at `stop`. If the units stay there, all
-- renewals find them.
function concurrency.times_held(section, units, count, stop)
  local _, own = find(section, stop)
  if own < units then return 0 end
  return is_current(section, stop) and count or math.min(count, (own - own % units) / units)
end

-- Moves units that a step has to the current one.
function concurrency.renew(section, units, stop)
  if is_current(section, stop) then return end
  steps.take(section, units, stop)
  steps.charge(section, units)
end
