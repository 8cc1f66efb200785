-- Steps and sections: how a value is read and searched.
--
-- Each function here is made anew by every call of the script, and what it closes over costs more: so they are few,
-- take what they need as arguments, and give several values back where a table would read better. What is seldom needed
-- is in `slow_path`.

local slow_path -- made of layout.lua and settle.lua

-- How the entries of a queue are written.
-- width  as in a section's head; 0 is a queue that has had no entries
-- Returns the format of an entry, its size in bytes, and what both its numbers are counted modulo.
local function entry_format(width)
  if width < 2 then return '<I2I2', 4, 65536 end
  if width == 2 then return '<I4I4', 8, 4294967296 end
  if width == 3 then return '<I7I7', 14, 9007199254740992 end
  error('no such width')
end

-- Finds a place in a queue by bisection: the numbers of steps, and the totals, grow from entry to entry.
-- source        the string that the entries stand in
-- live, behind  where the first of them begins, and where the last ends
-- width         of the entries
-- of_totals     whether totals are compared, else numbers of steps
-- origin        what they are counted from, in units or steps
-- bound         in units or steps above the origin
-- Returns how many entries come before the first that is at least `bound`.
local function lower_bound(source, live, behind, width, of_totals, origin, bound)
  local unpack, entry, size, wrap = struct.unpack, entry_format(width)
  local count = (behind - live) / size
  count = count - count % 1
  local low, high, probe = 0, count + 1, count -- the last first, as a silence releases all
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    local number, total = unpack(entry, source, live + (probe - 1) * size)
    if of_totals then number = total end
    if (number - origin) % wrap < bound then
      low, probe = probe, probe * 2
    else
      high, probe = probe, probe == count and 1 or high -- then galloping from the first, as the answer is mostly small
    end
  end
  return low
end

-- Reads a section, without the steps that are released.
-- now        in ms
-- value, at  the value, and where in it the section's head begins
-- labels, k  the labels of the caller's rules, and which rule it is
-- used       the section's units as the front of the value says
-- Returns the units that count; the ends of the newest and the oldest step that count, 0 and 0 if none does; the total
-- before the oldest; the width of entries; where the entries that count begin and end; where their room ends; step and
-- hold in ms.
local function read_section(now, value, at, labels, k, used)
  local unpack = struct.unpack
  local step, hold = unpack('<I6I6', labels, k * 12 - 11)
  local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
  local live = at + 28
  local behind, limit, time = live + length, live + room, now
  if newest - step > now then time = newest - step end -- the clock stepped back: time stands still until it has caught up
  if used == 0 or newest + hold <= time then return 0, 0, 0, 0, 0, behind, behind, limit, step, hold end

  if first + hold <= time then
    local entry, size, wrap = entry_format(width)
    local number, oldest = newest / step, first / step
    local kept = (newest + hold - time) / step -- a step that is at least so many steps before the newest is released
    local gone = 1
    -- Half an entry further on stand the total of one and the step of the next.
    local total, following = unpack(entry, value, live + size / 2)
    if length <= size or (number - following) % wrap >= kept then -- not the first alone, as mostly
      local bound = number - oldest - kept
      gone = lower_bound(value, live, behind, width, false, oldest, bound - bound % 1 + 1)
      total, following = unpack(entry, value, live + gone * size - size / 2)
    end
    live, used, base = live + gone * size, used - (total - base) % wrap, total
    first = live < behind and newest - (number - following) % wrap * step or newest
  end
  return used, newest, first, base, width, live, behind, limit, step, hold
end
