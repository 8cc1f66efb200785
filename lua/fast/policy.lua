-- Reads the policy of a task for the fast path.

-- Returns false if the plain script has to decide. [1] to [3] are the most units that the first rules may use while
-- entries are narrow, [4] to [6] while they are wide: any number where there is no such rule.
--
-- In the part, byte 17 is the number of rules. Then come the class, the mark of the labels, how much of a value to read,
-- and the limits.
local function read_policy(task, arg, tasks)
  if task.policy_at > 0 then
    arg = ARGV[task.policy_at]
    if tasks[arg].policy ~= nil then return tasks[arg].policy end
  end
  if #arg == 17 then return false end -- no rules: of a check that only looks up blocks
  local most = 65535 -- of narrow entries
  local rules, class, mark, upto, first, second, third = struct.unpack('<I1I1I6I2I7I7I7', arg, 17)
  if class == 0 then return false end
  if class == 4 then return { class = 4, limit = first, window = struct.unpack('<I6', arg, 40) } end -- slots
  if rules < 2 then second = 2 ^ 57 end
  if rules < 3 then third = 2 ^ 57 end
  return {
    first < most and first or most, rules < 2 and second or second < most and second or most,
    rules < 3 and third or third < most and third or most, first, second, third,
    rules = rules, class = rules > 3 and class == 1 and 2 or class, mark = mark, arg = arg,
    shape = nil, new = nil, -- see steps.lua
    upto = string.format('%d', upto), -- in bytes, from 0, as text: the front, and the totals of the first rule
    front = rules == 1 and '<I6I6I6I6I6I6I7I7' or rules == 2 and '<I6I6I6I6I6I6I7I7I7' or '<I6I6I6I6I6I6I7I7I7I7',
    counts = rules == 1 and '<I7' or rules == 2 and '<I7I7' or rules == 3 and '<I7I7I7' or '<' .. string.rep('I7', rules),
  }
end

-- The end of the current period of the calendar, whose boundaries begin at `at`, and the place behind them; or nothing
-- if the time may be in none. A boundary has 6 bytes.
local function read_period(arg, at, now)
  local count, i = string.byte(arg, at), 1
  local bounds = { struct.unpack('<' .. string.rep('I6', count), arg, at + 1) }
  while i <= count and bounds[i] <= now do i = i + 1 end
  if i > 1 and i + 2 <= count then return bounds[i], at + 1 + count * 6 end
end
