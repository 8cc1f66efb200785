-- What few checks need: how often a cost fits, why it does not, and the first charge of a key. Nothing is written to
-- the server here.

-- Pass 1: how many times the units of a task fit.
-- now    in ms
-- task   what is asked
-- state  of the key
-- count  how many times are asked for
local function fitting(now, task, state, count)
  local value, unpack, at = state[1], struct.unpack, nil
  local units, labels, dues = task[1], task[2], value and state[4] + 4
  for k = 1, task[6] do
    local room = task[k + 6]
    local used = value and state[k + 4] or 0
    -- What is released can only make room: where one more fits without it, it need not be read.
    if value and (count > 1 or units > room - used) then
      at = 14 + state[4] * 14
      for _ = 2, k do at = at + 28 + unpack('<I4', value, at + 23) end
      local step, hold = unpack('<I6I6', labels, k * 12 - 11)
      local due = state[dues + k]
      local is_due = due <= now and (state[3] or unpack('<I6', value, at + 6) + hold <= now)
      if is_due or step > 140737488355328 then used = read_section(now, value, at, labels, k, used, due) end
      if step > 140737488355328 then used = math.ceil(used / (step - 140737488355328)) end
    end
    room = room - used
    if units > room then return 0 end
    if units > 0 then count = math.min(count, (room - room % units) / units) end
  end
  return count
end

-- Pass 2: what is to be replied of one key: for each rule what is used, the end of the newest step, and when the units
-- fit; of a bucket what is missing, in units * ms, and the time.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  that ought to fit; 0 if only what counts is asked for
local function explain(now, task, state, units)
  local value, sections = state[1], state[4]
  local labels, rules = task[2], task[6]
  if not value then return '\1' .. string.rep('\0', rules * 19) end
  local pack, unpack = struct.pack, struct.unpack
  local reply, at = '\1', 14 + sections * 14
  for k = 1, rules do
    local limit, used, due, newest, fits_at = task[k + 6], state[k + 4], state[sections + k + 4], nil, 0
    if due <= now or used - limit + units > 0 then -- in this order, no number is too large
      local first, base, width, live, behind, step, hold, _
      used, newest, first, base, width, live, behind, _, step, hold = read_section(now, value, at, labels, k, used, due)
      local excess = used - limit + units -- what has to be released
      if excess <= 0 or step > 140737488355328 then
        fits_at = 0
      elseif excess == 1 then
        fits_at = first + hold
      elseif units <= limit then
        local entry, size, wrap = seldom().entry_format(width)
        local last = live + seldom().lower_bound(value, live, behind, width, true, base, excess) * size
        local after = last < behind and (newest / step - unpack(entry, value, last)) % wrap * step or 0
        fits_at = newest - after + hold
      end
    else
      newest = unpack('<I6', value, at)
      if newest == 0 then newest = due end -- a bucket in which time stands still
    end
    reply = reply .. pack('<I7I6I6', used, newest, fits_at)
    if k < rules then at = at + 28 + unpack('<I4', value, at + 23) end
  end
  return reply
end

-- Pass 2: charges a key where nothing counts.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  above 0
local function create(now, task, state, units)
  local spread = unpack or table.unpack
  local pack, unpack = struct.pack, struct.unpack
  local labels, rules = task[2], task[6]
  local since, release, window, heads = 0, 0, 0, ''
  state[4] = rules
  for k = 1, rules do
    local step, hold = unpack('<I6I6', labels, k * 12 - 11)
    local used, start, newest, due = units, now, 0, now
    if step > 140737488355328 then
      used = units * (step - 140737488355328)
      hold = math.min(math.ceil(used / hold), 140737488355328)
    else
      start = now - now % step
      newest = start + step
      due = newest
    end
    if start > since then since = start end
    if due + hold > release then release, window = due + hold, hold > 0 and hold or step end
    state[k + 4], state[rules + k + 4] = used, due
    heads = heads .. pack('<I6I6', newest, newest) .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- base, length, room, width
  end
  state[3] = release + (window > 60000 and 60000 or window) -- as in `charge`
  state[rules * 2 + 5], state[rules * 2 + 6] = since, state[3]
  state[2] = pack(task[3], spread(state, 4, rules * 2 + 6)) .. heads .. labels
end

