-- Pass 2: charges a key where nothing counts.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  above 0
local now, task, state, units = ...
local pack, unpack, spread = struct.pack, struct.unpack, unpack or table.unpack
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
state[3] = release + (window > 60000 and 60000 or window) -- later than must be, as in `charge`
state[rules * 2 + 5], state[rules * 2 + 6] = since, state[3]
state[2] = pack(task[3], spread(state, 4, rules * 2 + 6)) .. heads .. labels
