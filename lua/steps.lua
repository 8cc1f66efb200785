-- Reads what is stored for one rule.
--
-- Each function of the script is made anew by every call, and what it closes over costs more: so those that all calls
-- need are few, take what they need as arguments, and give several values back where a table would read better.

local seldom -- does what few calls need, by its name: README.md says in which file

-- Reads a section, without the steps that are released.
-- now        in ms
-- value, at  the value, and where in it the section's head begins
-- labels, k  the labels of the caller's rules, and which rule it is
-- used, due  the section's numbers in the front of the value
-- Returns the units that count; the ends of the newest and the oldest step that count, 0 and 0 if none does; the total
-- before the oldest; the width of entries; where the entries that count begin and end; where their room ends; step and
-- hold in ms. Of a bucket: what is missing, in units * ms, and the time at which it is; the rest as of a section in
-- which nothing counts, step and hold as its label has them.
local function read_section(now, value, at, labels, k, used, due)
  local unpack = struct.unpack
  local step, hold = unpack('<I6I6', labels, k * 12 - 11)
  local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
  local live = at + 28
  local behind, limit, time = live + length, live + room, now
  if newest - step > now then time = newest - step end -- the clock stepped back: time stands still until it catches up
  if newest == 0 or newest + hold <= time then -- the head is empty, or all is released
    if step < 140737488355328 then return 0, 0, 0, 0, 0, behind, behind, limit, step, hold end
    -- A bucket: `step` is 2^47 + its window, `hold` its refill.
    if now > due then
      -- Divided, since the product could be too large for a number.
      used = now - due < used / hold and used - (now - due) * hold or 0
      due = now
    end
    return used, due, 0, 0, 0, live, live, limit, step, hold
  end

  if first + hold <= time then
    local entry, size, wrap = '<I2I2', 4, 65536
    if width > 1 then entry, size, wrap = seldom('entry_format', width) end
    local number, oldest = newest / step, first / step
    local kept = (newest + hold - time) / step -- a step that is at least so many steps before the newest is released
    -- Read half an entry further on: the total of one entry, and the step of the next.
    local gone, total, following = 1, unpack(entry, value, live + size / 2)
    while gone * size < length and (number - following) % wrap >= kept do
      gone = gone + 1
      if gone < 4 then
        total, following = unpack(entry, value, live + gone * size - size / 2)
      else -- many, or all
        local bound = number - oldest - kept
        gone = seldom('lower_bound', value, live, behind, width, false, oldest, bound - bound % 1 + 1)
        total, following = unpack(entry, value, live + gone * size - size / 2)
        break
      end
    end
    live, used, base = live + gone * size, used - (total - base) % wrap, total
    first = live < behind and newest - (number - following) % wrap * step or newest
  end
  return used, newest, first, base, width, live, behind, limit, step, hold
end
