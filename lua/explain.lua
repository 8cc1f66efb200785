-- What few checks need: how often a cost fits, why it does not, and the first charge of a key. Nothing is written to
-- the server here.

-- Pass 1: how many times the units of a task fit.
-- now    in ms
-- task   what is asked
-- state  of the key
-- count  how many times are asked for
local function fitting(now, task, state, count)
  local value, unpack, at = state.value, struct.unpack, nil
  local units, labels, dues = task[1], task[2], value and state[1] + 1
  for k = 1, task[6] do
    local room = task[k + 6]
    local used = value and state[k + 1] or 0
    -- What is released can only make room: where one more fits without it, it need not be read.
    if value and (count > 1 or units > room - used) then
      at = 14 + state[1] * 14
      for _ = 2, k do at = at + 28 + unpack('<I4', value, at + 23) end
      local step, hold = unpack('<I6I6', labels, k * 12 - 11)
      local is_due = state[dues + k] <= now and (state.is_whole or unpack('<I6', value, at + 6) + hold <= now)
      if is_due or step > BUCKET then used = read_section(now, value, at, labels, k, state) end
      if step > BUCKET then used = math.ceil(used / (step - BUCKET)) end
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
  local value, sections = state.value, state[1]
  local labels, rules = task[2], task[6]
  if not value then return '\1' .. string.rep('\0', rules * 19) end
  local pack, unpack = struct.pack, struct.unpack
  local reply, at = '\1', 14 + sections * 14
  for k = 1, rules do
    local used, newest, fits_at = state[k + 1], nil, 0
    local limit, is_due = task[k + 6], state[sections + 1 + k] <= now
    if is_due or used - limit + units > 0 then -- in this order, no number is too large
      local first, base, width, live, behind, step, hold, _
      used, newest, first, base, width, live, behind, _, step, hold = read_section(now, value, at, labels, k, state)
      local excess = used - limit + units -- what has to be released
      if excess == 1 and step < BUCKET then
        fits_at = first + hold
      elseif excess > 0 and units <= limit and step < BUCKET then
        local entry, size, wrap = entry_format(width)
        local last = live + lower_bound(value, live, behind, width, true, base, excess) * size
        local after = last < behind and (newest / step - unpack(entry, value, last)) % wrap * step or 0
        fits_at = newest - after + hold
      end
    else
      newest = unpack('<I6', value, at)
      if newest == 0 then newest = state[sections + 1 + k] end -- a bucket in which time stands still
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
  local spread = table.unpack or unpack
  local pack, unpack = struct.pack, struct.unpack
  local labels, rules = task[2], task[6]
  local front, since, release, window, heads = { rules }, 0, 0, 0, ''
  state[1] = rules
  for k = 1, rules do
    local step, hold = unpack('<I6I6', labels, k * 12 - 11)
    local used, start, newest, due = units, now, 0, now
    if step > BUCKET then
      used = units * (step - BUCKET)
      hold = math.min(math.ceil(used / hold), FOR_EVER)
    else
      start = now - now % step
      newest = start + step
      due = newest
    end
    if start > since then since = start end
    if due + hold > release then release, window = due + hold, hold > 0 and hold or step end
    state[k + 1], front[k + 1], front[rules + 1 + k] = used, used, due
    heads = heads .. pack('<I6I6', newest, newest) .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- base, length, room, width
  end
  state.expires = release + (window > 60000 and 60000 or window) -- as in `charge`
  front[rules * 2 + 2], front[rules * 2 + 3] = since, state.expires
  state.written = pack(task[3], spread(front, 1, #front)) .. heads .. labels
end

