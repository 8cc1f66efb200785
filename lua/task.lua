-- Reads a task: the fields of a part before the policy. `policy_at` is 0, or the part that has the policy.

local function read_task(arg, tasks)
  local JOINED = 16 -- added to the action of a part that belongs to the operation of the part before it
  local action, count, units, block_count, policy_at = struct.unpack('<I1I4I7I1I2', arg, 2)
  local task = {
    action = action % JOINED, is_joined = action >= JOINED, count = count, units = units, block_count = block_count,
    policy_at = policy_at, policy = nil, rules = nil, -- for the fast path; for the plain script
  }
  tasks[arg] = task
  return task
end
