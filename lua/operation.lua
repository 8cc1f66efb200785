-- An operation of a call: the parts from `first` to `last`.

local last, task = first, following
while last < last_part do
  following = tasks[ARGV[last + 1]] or read_task(ARGV[last + 1], tasks)
  if not following.is_joined then break end
  last = last + 1
end
local block_count, reply, count = task.block_count, nil, nil
