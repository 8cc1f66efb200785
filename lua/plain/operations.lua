-- The operations, by the action of a part. Each function gets the parts, and how many checks are asked for.

local SHADOWS, TAKE = 1, 3

local OPERATIONS = {
  [0] = check,
  [SHADOWS] = check,
  [2] = settle, -- adds units
  [TAKE] = settle,
  [4] = function(parts) -- reset
    values[parts[1].i] = GONE
    return DONE
  end,
  [5] = function(parts) return block_until(parts, math.min(now + parts[1].units, LAST)) end, -- for a time
  [6] = function(parts) return block_until(parts, parts[1].units) end,
  [7] = function(parts) return renew_or_return(parts, true) end,
  [8] = function(parts) return renew_or_return(parts, false) end,
}

-- The rules of the policy in a part, and the mark of their labels: first all limits, then all labels; and behind the
-- version of the value, details of some.
local function rules_of(arg)
  if byte(arg, POLICY_AT) == 0 then return {}, 0 end
  local count, _, mark, _, limit_at = unpack(RULES, arg, POLICY_AT)
  local rules, limit, label_at = {}, nil, limit_at + count * LIMIT_SIZE
  for k = 1, count do
    limit, limit_at = unpack(LIMIT, arg, limit_at)
    rules[k] = rule_of(sub(arg, label_at, label_at + LABEL_SIZE - 1), limit)
    label_at = label_at + LABEL_SIZE + BEHIND_LABEL
  end
  local details_at = label_at + 2
  for _, rule in ipairs(rules) do
    if rule.kind.read_details then details_at = rule.kind.read_details(rule, arg, details_at) end
  end
  return rules, mark
end

-- The i-th part: the task for a key. The policy may stand in an earlier part.
local function part_of(i)
  local task = tasks[ARGV[i]]
  local arg = task.policy_at > 0 and ARGV[task.policy_at] or ARGV[i]
  local origin = tasks[arg]
  if not origin.rules then origin.rules, origin.mark = rules_of(arg) end
  local rules = origin.rules
  return {
    i = i, units = task.action == TAKE and -task.units or task.units, rules = rules, mark = origin.mark,
    are_slots = #rules == 1 and rules[1].kind == concurrency,
    sections = nil, expires = nil, -- of the key; `read` sets both
  }
end

-- Decides an operation, or raises an error.
local function attempt(first, last, next_block, admitted)
  local parts, task = {}, tasks[ARGV[first]]
  for i = first, last do parts[i - first + 1] = part_of(i) end
  local block = blocked_by(next_block, task.block_count)
  if block then return block, 0 end
  return OPERATIONS[task.action](parts, task.action == SHADOWS and admitted or task.count)
end

-- Decides an operation. After an error, it fails alone and writes nothing.
-- first, last  the parts
-- next_block   the first key of blocks
-- admitted     how many checks the operation before admitted: this one may be their shadows
-- Returns the reply, and how many checks were admitted; or nothing, and the error of the server, unless that is about the
-- key.
return function(first, last, next_block, admitted)
  for i = first, last do values[i], expiries[i], offsets[i] = nil, nil, nil end -- left by the fast path
  local is_done, reply, count = pcall(attempt, first, last, next_block, admitted)
  if is_done then return reply, count end
  for i = first, last do values[i], expiries[i] = nil, nil end
  local failure = type(reply) == 'table' and reply or {} -- else an error of Lua: a value could not be read
  local problem = failure.problem
  local is_of_key = problem and string.find(problem, 'WRONGTYPE', 1, true)
  if problem and not is_of_key then return nil, problem end
  return FAILED .. (is_of_key and WRONG_TYPE or failure.reason or UNREADABLE), 0
end
