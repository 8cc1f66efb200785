-- Sliding and fixed rules count units in steps. The end of a step is its name. The units count until `retention` ms
-- after the end.
--
-- A section holds the end of the `newest` step, and how many units are `used`. The `queue` has an entry for each step
-- before the newest, oldest first: the number of the step (end / step), and the total of all units up to that end.
-- Totals are counted from `base`. So bisection finds the released steps, and when a cost fits: no work grows with the
-- time that has passed. `width` says how wide entries are; both of their numbers are counted modulo `wrap`.

local NARROW = { format = '<I2I2', size = 4, wrap = 2 ^ 16 }
local ENTRIES = { -- by width; a queue that has had no entries has the width 0
  [0] = NARROW,
  NARROW,
  { format = '<I4I4', size = 8, wrap = 2 ^ 32 },
  { format = '<I7I7', size = 14, wrap = 2 ^ 53 },
}

-- How many steps there are: one for each entry, and the newest.
local function count_steps(section)
  return math.floor(#section.queue / ENTRIES[section.width].size) + 1
end

-- Adds units to `base`, and returns the total. In this order no number exceeds 2^53, so the sum is exact.
local function total_after(base, units, wrap)
  return (base - wrap + units) % wrap
end

-- The end of the i-th step, and the units of this and all earlier steps: 0 and 0 if `i` is 0.
local function step_at(section, i)
  if i == 0 then return 0, 0 end
  if i >= count_steps(section) then return section.newest, section.used end
  local entries, step = ENTRIES[section.width], section.rule.step
  local number, total = unpack(entries.format, section.queue, (i - 1) * entries.size + 1)
  local steps_ago = (section.newest / step - number) % entries.wrap
  return section.newest - steps_ago * step, (total - section.base) % entries.wrap
end

-- The bytes of an entry.
local function entry_bytes(section, stop, units)
  local entries = ENTRIES[section.width]
  local number = stop / section.rule.step % entries.wrap
  return pack(entries.format, number, total_after(section.base, units, entries.wrap))
end

-- The index of the first step for which `is_reached(stop, units)` holds, as for all later ones. If there is none, one
-- more than there are steps.
local function first_step(section, is_reached)
  local low, high = 1, count_steps(section) + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_reached(step_at(section, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Finds the step that ends at `stop`: returns the index and the units, 0 if there is no such step.
local function find(section, stop)
  local i = first_step(section, function(ends) return ends >= stop end)
  local _, before = step_at(section, i - 1)
  local ends, total = step_at(section, i)
  return i, ends == stop and total - before or 0
end

-- Makes entries wide enough for these units, and for the numbers of all steps that count: these may span a window and
-- a step.
local function widen(section, units)
  local width, most = 1, math.max(units, section.rule.retention / section.rule.step + 1)
  while most >= ENTRIES[width].wrap do width = width + 1 end
  if width <= section.width and section.used > 0 then return end
  local wide, entries = { rule = section.rule, width = width, base = 0 }, {}
  for i = 1, count_steps(section) - 1 do entries[i] = entry_bytes(wide, step_at(section, i)) end
  section.width, section.base, section.queue = width, 0, table.concat(entries)
end

-- Keeps the steps from the first to the last of these.
local function keep(section, first, last)
  local entries, _, before = ENTRIES[section.width], step_at(section, first - 1)
  local newest, total = step_at(section, last)
  section.queue = sub(section.queue, (first - 1) * entries.size + 1, math.max(last - 1, 0) * entries.size)
  section.base, section.used = total_after(section.base, before, entries.wrap), total - before
  section.newest = newest
  if section.used == 0 then section.newest, section.base, section.width = 0, 0, 0 end
end

-- Makes this step the newest: the newest so far gets an entry.
local function open(section, stop)
  if section.used > 0 then
    widen(section, section.used)
    section.queue = section.queue .. entry_bytes(section, section.newest, section.used)
  end
  section.newest = stop
end

local steps = {}

function steps.new(rule, step, retention)
  rule.step, rule.retention, rule.window = step, retention, math.max(step, retention)
  rule.least_room = retention > 0 and 32 or 0 -- a fixed rule has no queue
end

-- If the clock has stepped back, time stands still until the clock has caught up. A step that is further ahead than is
-- believed was charged while the clock was wrong.
function steps.advance(section)
  if section.used == 0 then return end
  local rule = section.rule
  local last = now + 2 * rule.step + math.max(rule.step, rule.retention)
  if section.newest > last then
    keep(section, 1, first_step(section, function(stop) return stop > last end) - 1)
  end
  local time = math.max(now, section.newest - rule.step)
  if step_at(section, 1) + rule.retention > time then return end
  local first = first_step(section, function(stop) return stop + rule.retention > time end)
  keep(section, first, count_steps(section))
end

function steps.charge(section, units)
  local step = section.rule.step
  local stop = now - now % step + step
  if stop > section.newest then open(section, stop) end
  section.used = section.used + units
end

-- This changes all totals from the step on. A step without units is left out.
function steps.take(section, units, stop)
  local i, own = find(section, stop)
  if own == 0 then return end
  units = math.min(units, own)
  open(section, section.newest) -- so that all steps have entries
  local entries = { sub(section.queue, 1, (i - 1) * ENTRIES[section.width].size) }
  for later = units < own and i or i + 1, count_steps(section) - 1 do
    local ends, total = step_at(section, later)
    entries[#entries + 1] = entry_bytes(section, ends, total - units)
  end
  section.queue = table.concat(entries)
  keep(section, 1, count_steps(section) - 1) -- the last entry becomes the newest step
end

function steps.fits_at(section, units)
  local excess = section.used - section.rule.limit + units -- in this order nothing exceeds 2^53
  local stop = step_at(section, first_step(section, function(_, total) return total >= excess end))
  return stop + section.rule.retention
end

function steps.describe(section)
  local rule, newest, first = section.rule, section.newest, step_at(section, 1)
  section.units, section.first = section.used, first
  section.start, section.release = newest - rule.step, newest + rule.retention
  section.due = math.min(newest, first + rule.retention)
end
