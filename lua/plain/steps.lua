-- Sliding and fixed rules: they count units in steps. A step is named by its end, and counts until `retention` ms after
-- it.
--
-- A section holds the end of its `newest` step, and how many units are `used`. Its `queue` has an entry for each step
-- before the newest, oldest first: the number of the step (its end / step), and the total of all units up to its end.
-- Totals are counted from `base`. So what is released and when a cost fits are found by bisection: no work grows with
-- the time that has passed. `width` says how wide entries are; both of their numbers are counted modulo `wrap`.

local NARROW = { format = '<I2I2', size = 4, wrap = 2 ^ 16 }
local ENTRIES = { -- by width; a queue that has had no entries has the width 0
  [0] = NARROW,
  NARROW,
  { format = '<I4I4', size = 8, wrap = 2 ^ 32 },
  { format = '<I7I7', size = 14, wrap = 2 ^ 53 },
}

local function count_entries(section)
  return math.floor(#section.queue / ENTRIES[section.width].size)
end

-- Adds units to `base`, and returns the total. In this order no number exceeds 2^53, so the sum is exact.
local function total_after(base, units, wrap)
  return (base - wrap + units) % wrap
end

-- The end of the step of the i-th entry, and the units of this step and all before it.
local function entry(section, i)
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

-- The index of the first entry, from the i-th on, for which `is_reached(stop, units)` holds; then it holds for all
-- later ones. One more than there are if it holds for none.
local function first_entry(section, i, is_reached)
  local bound, stride = count_entries(section) + 1, 1 -- doubled, since the first is mostly near
  while i < bound do
    local probe = i + stride < bound and i + stride - 1 or math.floor((i + bound) / 2)
    if is_reached(entry(section, probe)) then
      bound = probe
    else
      i, stride = probe + 1, stride * 2
    end
  end
  return i
end

-- Finds the step that ends at `stop`: the index of its entry or, if it has none, of the first later one; the units
-- before it; its own; and whether it has an entry.
local function find(section, stop)
  local i, before = first_entry(section, 1, function(ends) return ends >= stop end), 0
  if i > 1 then before = select(2, entry(section, i - 1)) end
  local ends, total = section.newest, section.used
  if i <= count_entries(section) then ends, total = entry(section, i) end
  return i, before, ends == stop and total - before or 0, ends == stop
end

-- Makes entries so wide that they can hold so many units, and tell steps apart: those that count may span two windows
-- and four steps, as the newest may be a window ahead of a clock that has stepped back.
local function widen(section, units)
  local width, most = 1, math.max(units, 2 * section.rule.retention / section.rule.step + 4)
  while most >= ENTRIES[width].wrap do width = width + 1 end
  if width <= section.width and section.queue ~= '' then return end
  local wide, entries = { rule = section.rule, width = width, base = 0 }, {}
  for i = 1, count_entries(section) do entries[i] = entry_bytes(wide, entry(section, i)) end
  section.width, section.base, section.queue = width, 0, table.concat(entries)
end

-- Keeps the steps of the first entries, of which the last becomes the newest step.
local function keep(section, count)
  if count == 0 then
    section.used, section.newest, section.base, section.width, section.queue = 0, 0, 0, 0, ''
    return
  end
  local newest, units = entry(section, count)
  section.queue = sub(section.queue, 1, (count - 1) * ENTRIES[section.width].size)
  section.newest, section.used = newest, units
end

-- Drops the steps that are released at a time.
local function drop_released(section, time)
  local retention, entries = section.rule.retention, ENTRIES[section.width]
  if section.newest + retention <= time then
    keep(section, 0)
  elseif section.queue ~= '' and entry(section, 1) + retention <= time then
    local live = first_entry(section, 2, function(stop) return stop + retention > time end)
    local _, released = entry(section, live - 1)
    section.base = total_after(section.base, released, entries.wrap)
    section.queue = sub(section.queue, (live - 1) * entries.size + 1)
    section.used = section.used - released
  end
end

-- Adds units to the newest step, or to a later one.
local function add(section, stop, units)
  if stop > section.newest then
    if section.used > 0 then
      widen(section, section.used)
      section.queue = section.queue .. entry_bytes(section, section.newest, section.used)
    end
    section.newest = stop
  end
  section.used = section.used + units
end

-- Changes the units of a step that is not after the newest, and so the totals from it on. A step without units is left
-- out.
local function change(section, stop, units)
  widen(section, section.used + math.max(units, 0))
  section.queue = section.queue .. entry_bytes(section, section.newest, section.used) -- an entry as the others, for now
  local i, before, own, has_entry = find(section, stop)
  local entries = { sub(section.queue, 1, (i - 1) * ENTRIES[section.width].size) }
  if has_entry then i = i + 1 end

  units = math.max(units, -own)
  if own + units > 0 then entries[2] = entry_bytes(section, stop, before + own + units) end
  for k = i, count_entries(section) do
    local ends, total = entry(section, k)
    entries[#entries + 1] = entry_bytes(section, ends, total + units)
  end
  section.queue = table.concat(entries)
  keep(section, count_entries(section))
end

-- The end of the last step that is believed: one further ahead was charged while the clock was wrong.
local function last_believed(rule, time)
  return time + 2 * rule.step + math.max(rule.step, rule.retention)
end

local steps = {}

function steps.new(rule, step, retention)
  rule.step, rule.retention, rule.window = step, retention, math.max(step, retention)
  rule.least_room = retention > 0 and 32 or 0 -- a fixed rule has no queue
end

function steps.advance(section, time)
  local rule = section.rule
  if section.newest - rule.step > time then -- the clock has stepped back: time stands still until it has caught up
    local last = last_believed(rule, time)
    if section.newest > last then
      keep(section, first_entry(section, 1, function(stop) return stop > last end) - 1)
    end
    time = math.max(time, section.newest - rule.step)
  end
  drop_released(section, time)
end

function steps.charge(section, time, units)
  add(section, time < section.newest and section.newest or time - time % section.rule.step + section.rule.step, units)
end

function steps.settle(section, time, units, stop)
  local rule = section.rule
  local is_released = stop + rule.retention <= math.max(time, section.newest - rule.step)
  if is_released or stop > last_believed(rule, time) then return end
  units = math.min(units, MOST_UNITS - section.used)
  if stop <= section.newest then
    change(section, stop, units)
  elseif units > 0 then
    add(section, stop, units)
  end
end

function steps.fits_at(section, units)
  local excess = section.used - section.rule.limit + units -- in this order nothing exceeds 2^53
  local i = first_entry(section, 1, function(_, total) return total >= excess end)
  local stop = i > count_entries(section) and section.newest or entry(section, i)
  return stop + section.rule.retention
end

function steps.describe(section)
  local rule, newest = section.rule, section.newest
  local first = section.queue ~= '' and entry(section, 1) or newest
  section.units, section.first = section.used, first
  section.start, section.release = newest - rule.step, newest + rule.retention
  section.due = math.min(newest, first + rule.retention)
end
