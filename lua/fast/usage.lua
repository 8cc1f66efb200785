-- The fast path's view of a section with entries of width 1, and the replies without a charge.
--
-- A head has 28 bytes, with the room at byte 24. An entry has 4: two numbers modulo 2^16. The sections begin at byte
-- 14 + rules * 14.

-- Searches numbers of 2 bytes that grow. Returns the last index with a number less than `bound` above `origin`. The
-- caller knows that `low` is such an index (or 0), and that `high` is not.
local function last_below(value, at, low, high, origin, bound)
  high = high - high % 1 -- with a part of an entry, the search would not end
  local probe = low + 1 -- doubled, since the answer is mostly near
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    if (unpack('<I2', value, at + (probe - 1) * 4) - origin) % 2 ^ 16 < bound then
      low, probe = probe, probe * 2
    else
      high, probe = probe, high -- which is too high, so the next probe is in the middle
    end
  end
  return low
end

-- Reads a section, which is `skipped` sections behind the one that begins at `at`, without its released steps.
-- Returns used, newest, first, base, width, where live entries begin and end, where the section begins, and the room;
-- or nothing if the plain script has to decide.
local function read_section(value, at, skipped, used, step, retention)
  local last_at = #value - 28
  for _ = 1, skipped do
    if at > last_at then return end
    at = at + 28 + unpack('<I4', value, at + 23)
  end
  if at > last_at then return end
  local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
  local live = at + 28
  local behind = live + length
  if length > room or live + room >= #value then return end -- the labels follow
  if newest + retention <= now then return 0, 0, 0, 0, 0, behind, behind, at, room end
  if first + retention <= now then
    if width ~= 1 or length == 0 or length % 4 > 0 then return end
    local oldest = now - retention -- the end of a step that is released at this moment
    local released = (oldest - oldest % step - first) / step
    live = live + last_below(value, live, 1, length / 4 + 1, first / step, released + 1) * 4
    local total, following = unpack('<I2I2', value, live - 2) -- the total of an entry, and the step of the next
    used, base = used - (total - base) % 2 ^ 16, total
    if used < 0 then return end
    first = live < behind and newest - (newest / step - following) % 2 ^ 16 * step or newest
  end
  return used, newest, first, base, width, live, behind, at, room
end

-- Returns the reply about a key (the used units of each rule and, if the cost does not fit, when it does) and whether
-- the cost fits, as released steps may make room; or nothing if the plain script has to decide.
local function usage_of(policy, value, front, units)
  local usage, fits, rules, labels = '', true, policy.rules, policy.labels
  for k = 1, rules do
    local used, newest, fits_at, limit = front[k + 1], nil, nil, policy.limits[k + 1]
    local step, retention, over = labels[k * 2 - 1], labels[k * 2], used - limit + units
    if policy.kind == CALENDAR then
      newest, fits_at = retention, retention -- `read_periods` has put the end of the period there
    elseif over <= 0 and front[k + rules + 1] > now then
      newest = now - now % step + step
    else
      local first, base, width, live, behind
      used, newest, first, base, width, live, behind =
        read_section(value, 14 + rules * 14, k - 1, used, step, retention)
      over = used and used - limit + units
      if not used or over > 1 and width > 1 then return end
      if over > 1 then -- else the first step makes room
        live = live + last_below(value, live + 2, 0, (behind - live) / 4 + 1, base, over) * 4
        first = live < behind and newest - (newest / step - unpack('<I2', value, live)) % 2 ^ 16 * step or newest
      end
      fits_at = first + retention
    end
    fits = fits and over <= 0
    usage = usage .. pack('<I7I6I6', used, newest, over > 0 and units <= limit and fits_at or 0)
  end
  return usage, fits
end
