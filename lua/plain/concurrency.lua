-- Concurrency rules are sliding rules, and their units are slots. A return takes a slot from its step. A renewal moves
-- the slot to the step of now, so that it is released later.

local concurrency = setmetatable({}, { __index = steps }) -- all functions of `steps`, and these

-- Whether a step is that of now, or the newest while the clock has stepped back: renewed slots stay in it.
local function is_current(section, stop)
  return stop == section.newest and stop > now
end

-- How many of `count` equal renewals find their units in the step that ends at `stop`. Those that stay in it are found
-- by all.
function concurrency.times_held(section, units, count, stop)
  local _, _, own = find(section, stop)
  if own < units then return 0 end
  return is_current(section, stop) and count or math.min(count, (own - own % units) / units)
end

-- Moves units that a step has to the current one.
function concurrency.renew(section, units, stop)
  if is_current(section, stop) then return end
  change(section, stop, -units)
  steps.charge(section, units)
end
