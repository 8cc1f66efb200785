-- The fast path: decides the common case several times as fast as the plain script, and is there for nothing else.
--
-- It takes checks of keys that exist and hold the sections of the caller's rules and no others, while no clock has
-- stepped back: it charges them as they are, opens steps, releases others, or denies. And it settles the newest step,
-- and renews the slots of a key. Anything else it hands over by returning nothing: a policy with rules of two kinds, a
-- block, a key that is new, another period of the calendar, wide entries, a queue without room, a check that is
-- admitted partly, slots that are lost. A value that cannot be read raises an error. The plain script then begins the
-- operation again, as nothing has been changed. To change what the script means, change the plain script: without this
-- path it gives the same answers.

local get = redis.pcall
local HEAD, HEAD_SIZE = '<I6I6I7I4I4I1', 28
local ENTRY_SIZE, WRAP = 4, 65536 -- of entries of width 1, the only ones that are read here
local CALENDAR, BUCKET = 2, 8 -- numbers of kinds
local TAKE, RENEW = 3, 7 -- actions
local tasks = {} -- by arguments, as those of a call are mostly alike
local policies = {} -- by the arguments that have them
local fronts = {} -- of KEYS[i], the numbers that its value begins with: count, used of each, due of each, since, expires;
-- and last the position behind them, as struct.unpack returns it

-- Reads when the current period of each calendar rule ends. The plain script has to if the time is not surely in one.
local function read_periods(policy, arg, at)
  policy.stops = {}
  for k = 1, policy.rules do
    local count, i = byte(arg, at), 1
    local bounds = { unpack('<' .. string.rep('I6', count), arg, at + 1) }
    while i <= count and bounds[i] <= now do i = i + 1 end
    if i == 1 or i + 2 > count then policy.is_other = true end
    policy.stops[k], at = bounds[i], at + 1 + count * 6
  end
end

local function read_policy(arg)
  local rules, steps, retentions, kind = byte(arg, 17), {}, {}, nil
  local each, at = string.rep('I7', rules), 18 + rules * 7
  local used_format, labels_end = '<I1' .. each, at + rules * 12
  local policy = {
    rules = rules, kind = nil, is_other = rules == 0, stops = nil,
    steps = steps, retentions = retentions, -- of a bucket, its period and refill
    labels = sub(arg, at, labels_end), -- and the version of a value: so a value ends that is laid out alike
    limits = { unpack(used_format, arg, 17) }, -- [1] is the number of rules, and [k + 1] the limit of the k-th
    used_format = used_format, front_format = used_format .. each .. 'I6I6',
  }
  for k = 1, rules do
    local first, second = unpack('<I6I6', arg, at + k * 12 - 12)
    steps[k], retentions[k] = first % KIND, second
    first = (first - steps[k]) / KIND
    policy.is_other = kind and kind ~= first or first > CALENDAR and first ~= BUCKET or policy.is_other
    kind = first
  end
  policy.kind = kind
  if kind == CALENDAR and not policy.is_other then read_periods(policy, arg, labels_end + 1) end
  policies[arg] = policy
  return policy
end

-- Reads a part. Returns nothing if the plain script has to.
local function read_task(arg)
  local action, count, units, block_count, number = unpack('<I1I4I7I1I2', arg, 2)
  local of_policy = number > 0 and ARGV[number] or arg
  local policy = policies[of_policy] or read_policy(of_policy)
  action = action % JOINED
  if policy.is_other or action > TAKE and (action ~= RENEW or policy.kind ~= 1) then return end
  local task = { action = action, count = count, units = units, block_count = block_count, policy = policy }
  tasks[arg] = task
  return task
end

-- Among growing numbers in entries, the index of the last that is less than `bound` above `origin`. The caller knows
-- that the number at `low` is, or that `low` is before the first, and that the number at `high` is not.
local function last_below(value, at, low, high, origin, bound)
  high = high - high % 1 -- with a part of an entry, the search would not end
  local probe = low + 1 -- doubled, since the answer is mostly near
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    if (unpack('<I2', value, at + (probe - 1) * ENTRY_SIZE) - origin) % WRAP < bound then
      low, probe = probe, probe * 2
    else
      high, probe = probe, high -- and from now on the middle
    end
  end
  return low
end

-- Reads the k-th section of KEYS[i] without the steps that are released: used, newest, first, base, width, where live
-- entries begin and end, and where the section and its room begin and end. Returns nothing if the plain script has to.
local function read_section(policy, i, k)
  local value, at, step, retention = stored[i], 14 + policy.rules * 14, policy.steps[k], policy.retentions[k]
  for _ = 2, k do at = at + HEAD_SIZE + unpack('<I4', value, at + 23) end -- over the room of a queue
  local newest, first, base, length, room, width = unpack(HEAD, value, at)
  local live, used = at + HEAD_SIZE, fronts[i][k + 1]
  local behind, room_end = live + length, live + room
  if length > room or room_end > #value then error('a queue is longer than its value') end
  if newest + retention <= now then return 0, 0, 0, 0, 0, behind, behind, at, room_end end
  if first + retention <= now then
    if width ~= 1 and length > 0 then return end
    local oldest = now - retention -- the end of a step that is released at this moment
    local released = (oldest - oldest % step - first) / step
    live = live + last_below(value, live, 1, length / ENTRY_SIZE + 1, first / step, released + 1) * ENTRY_SIZE
    local total, following = unpack('<I2I2', value, live - 2) -- the total of an entry, and the step of the next
    used, base = used - (total - base) % WRAP, total
    first = live < behind and newest - (newest / step - following) % WRAP * step or newest
  end
  return used, newest, first, base, width, live, behind, at, room_end
end

-- Reads KEYS[i] and tests whether its units fit so many times. Returns nothing if the plain script has to.
local function fits(task, i, count)
  local value, policy = get('GET', KEYS[i]), task.policy
  stored[i] = value
  if not value or sub(value, -#policy.labels) ~= policy.labels then return end
  local front, rules, stops = { unpack(policy.front_format, value) }, policy.rules, policy.stops
  if front[1] ~= rules or front[rules * 2 + 2] > now or front[rules * 2 + 3] <= now then return end
  fronts[i] = front
  local units, limits, fit = task.units * count, policy.limits, true
  for k = 1, rules do
    local used, due, limit = front[k + 1], front[k + rules + 1], limits[k + 1]
    if stops and due ~= stops[k] then return end
    if policy.kind == BUCKET then -- what is missing, and the time, replace what the front has of them
      local period, gained = policy.steps[k], (now - due) * policy.retentions[k]
      if gained < 0 then return end
      used = gained < used and used - gained or 0
      front[k + 1], front[k + rules + 1] = used, now
      fit = fit and units <= (limit * period - used) / period
    elseif units > limit - used then
      if due <= now then used = read_section(policy, i, k) end -- what is released may make room
      if not used then return end
      fit = fit and units <= limit - used
    end
  end
  return fit
end
