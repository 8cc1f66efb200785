-- An operation of a call: the parts from `first` to `last`.

local last, task = first, tasks[ARGV[first]] or read_task(ARGV[first], tasks)
while last < last_part and (tasks[ARGV[last + 1]] or read_task(ARGV[last + 1], tasks)).is_joined do last = last + 1 end
local block_count, reply, count = task.block_count, nil, nil
