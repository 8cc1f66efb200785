-- Sliding and fixed rules count units in steps. The end of a step is its name, and the end divided by the length is its
-- `number`. The units count until `retention` ms after the end.
--
-- A section holds the end of the `newest` step, and how many units are `used`. The `body` has the totals of all units
-- up to the ends of earlier steps, counted from `base`. Totals are kept in one of two ways, by these functions:
--
-- total(section, number)  the total up to the end of an earlier step
-- bytes(section, width)   the body with the section's changes, with entries of this width
--
-- Both count modulo `wrap`. Bisection over totals finds when a cost fits: no work grows with the time that has passed.

local NARROW = { format = 'I2', size = 2, entry = '<I6I2', wrap = 2 ^ 16 }
local WIDE = { format = 'I7', size = 7, entry = '<I6I7', wrap = 2 ^ 53 } -- where more units are used
local MOST_PLACES = 256 -- of a ring

-- The units up to the end of a step, of those that the value had when it was read.
local function units_read(section, number)
  if number >= section.read_newest then return section.read_used end
  if number < section.read_newest - section.rule.places then return 0 end
  return (section.rule.totals.total(section, number) - section.base) % section.width.wrap
end

-- The units that count up to the end of a step.
local function units_until(section, number)
  if number <= section.released then return 0 end
  if number >= section.newest / section.rule.step then return section.used end
  local taken = number >= section.taken_from and section.taken or 0
  return units_read(section, number) - section.released_units - taken
end

-- The least whole number above `low` for which `is_right` holds. It holds for `high`, and from that least number on.
local function first(low, high, is_right)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if is_right(middle) then high = middle else low = middle end
  end
  return high
end

-- Returns the number of the first step up to whose end the total is at least `units`, which are more than 0.
local function first_with(section, units)
  local low = math.max(section.released, section.read_newest - section.rule.places - 1)
  local newest = section.newest / section.rule.step
  return first(low, newest, function(number) return units_until(section, number) >= units end)
end

-- A ring has a place for each step that can count beside the newest: for the step with this number, the place
-- `number % places`. That of a fixed rule has none.
local ring = {}

function ring.width(section)
  local size = #section.body / section.rule.places
  if size ~= NARROW.size and size ~= WIDE.size and size > 0 then fail(UNREADABLE) end
  return size == WIDE.size and WIDE or NARROW
end

function ring.total(section, number)
  local width = section.width
  return unpack('<' .. width.format, section.body, number % section.rule.places * width.size + 1)
end

function ring.bytes(section, width)
  local places, newest, totals = section.rule.places, section.newest / section.rule.step, {}
  for number = newest - places, newest - 1 do totals[number % places + 1] = units_until(section, number) end
  section.base = 0
  return pack('<' .. rep(width.format, places), spread(totals))
end

-- A queue has an entry for each earlier step, oldest first: the number and the total. Its first byte is the size of the
-- totals. Rules with more steps than a ring has keep one.
local queue = {}

function queue.width(section)
  return byte(section.body) == WIDE.size and WIDE or NARROW
end

-- The number and the total of the entry with this index.
local function entry_of(section, i)
  return unpack(section.width.entry, section.body, 2 + (i - 1) * (6 + section.width.size))
end

-- The index of the first entry with at least this number.
local function position(section, number)
  local low, count = 0, math.floor(#section.body / (6 + section.width.size))
  return first(low, count + 1, function(i) return entry_of(section, i) >= number end)
end

function queue.total(section, number)
  local i = position(section, number + 1) - 1
  return i == 0 and section.base or select(2, entry_of(section, i))
end

function queue.bytes(section, width)
  local newest, from = section.newest / section.rule.step, section.width == width and section.taken_from or 0
  local kept, last, size = position(section, section.released + 1), position(section, newest), 6 + section.width.size
  local changed = math.max(kept, math.min(position(section, from), last))
  local entries = { string.char(width.size) .. sub(section.body, 2 + (kept - 1) * size, 1 + (changed - 1) * size) }
  local base = (section.base - width.wrap + section.released_units) % width.wrap -- in this order always exact
  local function add(number)
    local total = (base - width.wrap + units_until(section, number)) % width.wrap
    entries[#entries + 1] = pack(width.entry, number, total)
  end
  for i = changed, last - 1 do add((entry_of(section, i))) end
  if section.read_used > 0 and section.read_newest > section.released and section.read_newest < newest then
    add(section.read_newest)
  end
  section.base = base
  return table.concat(entries)
end

local steps = {}

function steps.new(rule, step, retention)
  rule.step, rule.retention, rule.window = step, retention, math.max(step, retention)
  rule.places = math.ceil(retention / step)
  rule.totals = rule.places <= MOST_PLACES and ring or queue
end

-- If the clock has stepped back, time stands still until the clock has caught up. A step that is further ahead than is
-- believed was charged while the clock was wrong.
function steps.advance(section)
  local rule, step, newest = section.rule, section.rule.step, section.newest / section.rule.step
  section.read_newest, section.read_used, section.width = newest, section.used, rule.totals.width(section)
  section.taken_from, section.taken, section.released, section.released_units = math.huge, 0, -1, 0
  if section.used == 0 then return end
  if newest % 1 > 0 then fail(UNREADABLE) end -- bisection would not end
  local last = math.floor((now + 2 * step + rule.window) / step)
  if newest > last then
    section.newest, section.used = last * step, units_read(section, last)
    newest = section.used > 0 and first_with(section, section.used) or 0
    section.newest = newest * step
  end
  local released = math.floor((math.max(now, section.newest - step) - rule.retention) / step)
  local units = released < newest and units_read(section, released) or section.used
  section.released, section.released_units, section.used = released, units, section.used - units
  if section.used == 0 then section.newest = 0 end
end

function steps.charge(section, units)
  local step = section.rule.step
  section.newest = math.max(section.newest, now - now % step + step)
  section.used = section.used + units
end

function steps.take(section, units, stop)
  local number = stop / section.rule.step
  units = math.min(units, units_until(section, number) - units_until(section, number - 1))
  section.taken_from, section.taken, section.used = number, units, section.used - units
  section.newest = section.used > 0 and first_with(section, section.used) * section.rule.step or 0
end

function steps.fits_at(section, units)
  local excess = section.used - section.rule.limit + units -- in this order nothing exceeds 2^53
  return first_with(section, excess) * section.rule.step + section.rule.retention
end

-- Units are released when the next step begins, or once within it.
function steps.describe(section)
  local rule, newest, was_wide = section.rule, section.newest, section.width == WIDE
  local start = newest - rule.step
  local release = start + rule.retention % rule.step
  section.units, section.start, section.release = section.used, start, newest + rule.retention
  section.due = release > math.max(now, start) and release or newest
  section.needs_wide = section.used >= NARROW.wrap or was_wide and section.read_used > section.released_units
end

function steps.body(section, is_wide)
  section.body = section.rule.totals.bytes(section, is_wide and WIDE or NARROW)
end
