-- Pass 1: how many times the units of a task fit.
-- now    in ms
-- task   what is asked
-- state  of the key
-- count  how many times are asked for
local now, task, state, count = ...
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
    local is_released = due <= now and (state[3] or unpack('<I6', value, at + 6) + hold <= now)
    if is_released or step > 140737488355328 then used = read_section(now, value, at, labels, k, used, due) end
    if step > 140737488355328 then used = math.ceil(used / (step - 140737488355328)) end
  end
  room = room - used
  if units > room then return 0 end
  if units > 0 then count = math.min(count, (room - room % units) / units) end
end
return count
