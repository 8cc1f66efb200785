-- Reads the policy of a task for the fast path.

-- Puts the end of the current period of each calendar rule in place of the second number of the label. Returns whether
-- the time is surely in a period of each rule. A boundary has 6 bytes.
local function read_periods(arg, at, rules, labels, now)
  local byte, unpack = string.byte, struct.unpack
  for k = 1, rules do
    local count, i = byte(arg, at), 1
    local bounds = { unpack('<' .. string.rep('I6', count), arg, at + 1) }
    while i <= count and bounds[i] <= now do i = i + 1 end
    if i == 1 or i + 2 > count then return false end
    labels[k * 2], at = bounds[i], at + 1 + count * 6
  end
  return true
end

-- Reads the policy of a task, with the part `arg`. Returns false if the plain script has to decide: if there are no
-- rules, rules of two kinds, or of an unknown kind.
--
-- In the part, byte 17 is the number of rules. Then come the limits, of 7 bytes each, and the labels, of 12.
local function read_policy(task, arg, tasks, now)
  if task.policy_at > 0 then
    arg = ARGV[task.policy_at]
    if tasks[arg].policy ~= nil then return tasks[arg].policy end
  end
  local KIND, CONCURRENCY, CALENDAR, BUCKET = 2 ^ 44, 1, 2, 8 -- a label's first number is KIND * kind + a number
  local unpack, rep, rules, kind = struct.unpack, string.rep, string.byte(arg, 17), nil
  if rules == 1 then
    local limit, first, second = unpack('<I7I6I6', arg, 18)
    if first == CONCURRENCY * KIND then return { kind = CONCURRENCY, limit = limit, window = second } end
  end
  local each, at = rep('I7', rules), 18 + rules * 7
  local used_format, labels_end = '<I1' .. each, at + rules * 12
  local labels = { unpack('<' .. rep('I6I6', rules), arg, at) }
  for k = 1, rules * 2, 2 do
    local first = labels[k]
    labels[k] = first % KIND
    first = (first - labels[k]) / KIND
    if kind and kind ~= first or first > 0 and first ~= CALENDAR and first ~= BUCKET then return false end
    kind = first
  end
  if not kind or kind == CALENDAR and not read_periods(arg, labels_end + 1, rules, labels, now) then return false end
  return {
    rules = rules, kind = kind,
    limits = { unpack(used_format, arg, 17) }, -- [1] is the number of rules, and [k + 1] the limit of the k-th
    labels = labels, -- of the k-th: [k * 2 - 1] is the step or period, [k * 2] the retention, refill or end of period
    used_format = used_format, front_format = used_format .. each .. 'I6I6',
    ending = string.sub(arg, at, labels_end), -- of a value that is laid out as the caller expects: labels and version
    -- Such a value without room for queues: a front of 13 + 14 each, heads of 28, labels of 12, and the version.
    least_size = 14 + rules * 54,
  }
end
