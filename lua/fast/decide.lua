-- The fast path's choice between its operations, and what it hands over.

-- Decides an operation, as the plain script's `decide`. Returns nothing if that has to.
local function decide(first, last, next_block, checks_before)
  local task, is_admitted = tasks[ARGV[first]] or read_task(ARGV[first]), true
  if not task then return end
  local action, count = task.action, task.count
  for i = next_block, next_block + task.block_count - 1 do
    stored[i] = get('GET', KEYS[i])
    if stored[i] then return end
  end
  if action == RENEW then return first == last and renew(task, first), 1 end
  if action == 1 then count = checks_before end
  if action < 2 and count == 0 then return '\2', 0 end
  for i = first, last do
    task = tasks[ARGV[i]] or read_task(ARGV[i])
    local fit = task and fits(task, i, action < 2 and count or 0)
    if fit == nil then return end
    is_admitted = is_admitted and (fit or action > 1) -- a settlement has no limits
  end
  if not is_admitted and count > 1 then return end -- some may fit
  if not is_admitted then count = 0 end
  local reply = action > 1 and '\1' or count == 1 and '\1\1\0\0\0' or pack('<I1I4', 1, count)
  for i = first, last do
    task = tasks[ARGV[i]]
    if action < 2 and (count == 0 or task.units == 0) then
      reply = usage(task, i, reply)
    else
      local counts = (action > 1 and settle or charge)(task, i, task.units * count)
      reply = counts and reply .. '\2' .. counts
    end
    if not reply then return end
  end
  return reply, count
end
