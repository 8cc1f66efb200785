-- The fast path: decides the common case several times as fast as the plain script, and is there for nothing else.
--
-- It takes checks of keys that exist and hold the sections of the caller's rules and no others, all of one kind, while
-- no clock has stepped back: it charges them as they are, opens steps, releases others, or denies. And it settles the
-- newest step, and renews the slots of a key. Anything else it hands over by returning nothing: a block, a key that is
-- new, another period of the calendar, wide entries, a queue without room, a check that is admitted partly, slots that
-- are lost. A value that cannot be read raises an error. The plain script then begins the operation again, as nothing
-- has been changed. To change what the script means, change the plain script: without this file it gives the same
-- answers.

local pack, unpack, spread, sub, pcall_redis = struct.pack, struct.unpack, unpack or table.unpack, string.sub, redis.pcall
local HEAD, HEAD_SIZE = '<I6I6I7I4I4I1', 28
local ENTRY_SIZE, WRAP = 4, 65536 -- of entries of width 1, the only ones that are read here
local RENEWAL, HAND_OVER = 7, 8 -- actions; the latter is left to the plain script
local tasks = {} -- what an argument asks for, as the arguments of a call are mostly alike
local fronts = {} -- of KEYS[i], the numbers that its value begins with: count, used of each, due of each, since, expires; and
-- last the position behind them, as struct.unpack returns it

-- Reads when the current period of each calendar rule ends. The plain script has to if the time is not surely in one.
local function read_periods(task, arg, at)
  task.stops = {}
  for k = 1, task.rules do
    local count, i = unpack('<I1', arg, at), 1
    local bounds = { unpack('<' .. string.rep('I6', count), arg, at + 1) }
    while i <= count and bounds[i] <= now do i = i + 1 end
    if i == 1 or i + 2 > count then task.action = HAND_OVER end
    task.stops[k], at = bounds[i], at + 1 + count * 6
  end
end

local function read_task(arg)
  local action, count, units, block_count, rules = unpack('<I1I4I7I1I1', arg, 2)
  local each, labels_at = string.rep('I7', rules), 16 + rules * 7
  local used_format, spans = '<I1' .. each, { unpack('<' .. string.rep('I6I6', rules), arg, labels_at) }
  local kind = ((spans[1] or 0) - (spans[1] or 0) % KIND) / KIND
  local task = {
    action = action % JOINED, count = count, units = units, block_count = block_count, rules = rules, are_buckets = kind == BUCKET,
    tail = sub(arg, labels_at, labels_at + rules * 12), used_format = used_format, front_format = used_format .. each .. 'I6I6',
    limits = { unpack(used_format, arg, 15) }, -- [1] is the number of rules, and [k + 1] the limit of the k-th
    spans = spans, -- for each rule the two numbers of its label, without its kind
  }
  for k = 1, rules * 2, 2 do
    spans[k] = spans[k] - kind * KIND
    local is_other = spans[k] < 0 or spans[k] >= KIND
    if is_other or kind > CALENDAR and kind ~= BUCKET then task.action = HAND_OVER end
  end
  if kind == CALENDAR then read_periods(task, arg, labels_at + rules * 12 + 1) end
  local may_renew = kind == CONCURRENCY and rules == 1
  if task.action > 3 and not (task.action == RENEWAL and may_renew) then task.action = HAND_OVER end
  tasks[arg] = task
  return task
end

-- Of numbers that grow and stand in entries: the last that is less than `bound` above `origin`. The one at `low`, or
-- none, is known to be, the one at `high` not to be.
local function last_below(value, at, low, high, origin, bound)
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
local function read_section(task, i, k)
  local value, at, step, retention = stored[i], 14 + task.rules * 14, task.spans[k * 2 - 1], task.spans[k * 2]
  for _ = 2, k do at = at + HEAD_SIZE + unpack('<I4', value, at + 23) end
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
  if task.action == HAND_OVER then return end
  local value, rules, limits, spans = pcall_redis('GET', KEYS[i]), task.rules, task.limits, task.spans
  stored[i] = value
  if not value or sub(value, -#task.tail) ~= task.tail then return end
  local front, units, fit = { unpack(task.front_format, value) }, task.units * count, true
  if front[1] ~= rules or front[rules * 2 + 2] > now or front[rules * 2 + 3] <= now then return end
  fronts[i] = front
  for k = 1, rules do
    local used, due, limit = front[k + 1], front[k + rules + 1], limits[k + 1]
    if task.stops and due ~= task.stops[k] then return end
    if task.are_buckets then -- what is missing, and the time, replace what the front has of them
      local period, gained = spans[k * 2 - 1], (now - due) * spans[k * 2]
      if gained < 0 then return end
      used = gained < used and used - gained or 0
      front[k + 1], front[k + rules + 1] = used, now
      fit = fit and units <= (limit * period - used) / period
    elseif units > limit - used then
      if due <= now then used = read_section(task, i, k) end -- what is released may make room
      if not used then return end
      fit = fit and units <= limit - used
    end
  end
  return fit
end

-- The k-th section of KEYS[i], with the current step as its newest: used, newest, first, where it begins, and its
-- bytes: the head, the queue and a new entry. Returns nothing if the plain script has to.
local function open_step(task, i, k)
  local used, newest, first, base, width, live, behind, at, room_end = read_section(task, i, k)
  local step, closed = task.spans[k * 2 - 1], ''
  if not used then return end
  if used == 0 then
    newest = now - now % step + step
    first = newest
  elseif now >= newest then
    if width == 0 and task.spans[k * 2] / step < 4096 then width = 1 end
    if width ~= 1 or used >= WRAP then return end
    closed, newest = pack('<I2I2', newest / step % WRAP, (base + used) % WRAP), now - now % step + step
  end
  local length, room = behind - live + #closed, room_end - at - HEAD_SIZE
  if length > room or room > 64 and length * 4 < room then return end
  local head = pack(HEAD, newest, first, base, length, room, width)
  return used, newest, first, at, head, sub(stored[i], live, behind - 1), closed
end

-- Charges units to KEYS[i], of which a section is due. Returns its count and what its rules use, or nothing if the
-- plain script has to.
local function charge_due(task, i, units)
  local front, value, rules, spans = fronts[i], stored[i], task.rules, task.spans
  local since, expires, window = front[rules * 2 + 2], front[rules * 2 + 3], nil
  local changed, head, queue, closed, copy_from = '', '', '', '', 14 + rules * 14 -- joined late, as the server hashes each string
  for k = 1, rules do
    if front[k + rules + 1] <= now then
      local step, retention, used, newest, first, at = spans[k * 2 - 1], spans[k * 2], nil, nil, nil, nil
      changed = changed .. head .. queue .. closed
      used, newest, first, at, head, queue, closed = open_step(task, i, k)
      if not used then return end
      changed, copy_from = changed .. sub(value, copy_from, at - 1), at + #head + #queue + #closed
      front[k + 1], front[k + rules + 1] = used, math.min(newest, first + retention)
      if newest - step > since then since = newest - step end
      if newest + retention > expires then expires, window = newest + retention, math.max(step, retention) end
    end
    front[k + 1] = front[k + 1] + units
  end
  if window then -- all is written, as the expiry is
    expires, closed = expires + math.min(window, 60000), closed .. sub(value, copy_from)
    expiries[i] = expires
  end
  front[rules * 2 + 2], front[rules * 2 + 3] = since, expires
  values[i] = pack(task.front_format, spread(front)) .. changed .. head .. queue .. closed
  return sub(values[i], 1, 1 + rules * 7)
end

-- Charges units to KEYS[i]. Returns as `charge_due`.
local function charge(task, i, units)
  local front, rules, spans = fronts[i], task.rules, task.spans
  if task.are_buckets then
    for k = 1, rules do
      front[k + 1] = front[k + 1] + units * spans[k * 2 - 1]
      if now + front[k + 1] / spans[k * 2] > front[rules * 2 + 3] then return end -- it expires before it is full
    end
    values[i] = pack(task.front_format, spread(front))
    return sub(values[i], 1, 1 + rules * 7)
  end
  for k = rules + 2, rules * 2 + 1 do
    if front[k] <= now then return charge_due(task, i, units) end
  end
  for k = 2, rules + 1 do front[k] = front[k] + units end
  values[i] = pack(task.used_format, spread(front, 1, rules + 1))
  return values[i]
end

-- The reply with what is used of KEYS[i] without a charge; and, where the units do not fit, when they do. Returns
-- nothing if the plain script has to.
local function usage(task, i, reply)
  local front, value = fronts[i], stored[i]
  reply = reply .. '\1'
  for k = 1, task.rules do
    local used, newest, fits_at, step = front[k + 1], now, 0, task.spans[k * 2 - 1]
    local over = used + task.units - task.limits[k + 1]
    local is_bucket = task.are_buckets -- then the caller computes it
    if task.stops then
      newest = task.stops[k]
      if over > 0 and task.units <= task.limits[k + 1] then fits_at = newest end
    elseif not is_bucket and over <= 0 and front[k + task.rules + 1] > now then
      newest = now - now % step + step
    elseif not is_bucket then
      local first, base, width, live, behind
      used, newest, first, base, width, live, behind = read_section(task, i, k)
      over = used and used - task.limits[k + 1] + task.units
      if not used or over > 1 and width > 1 then return end
      if over > 1 then -- else the first step makes room
        live = live + last_below(value, live + 2, 0, (behind - live) / ENTRY_SIZE + 1, base, over) * ENTRY_SIZE
        first = live < behind and newest - (newest / step - unpack('<I2', value, live)) % WRAP * step or newest
      end
      if over > 0 and task.units <= task.limits[k + 1] then fits_at = first + task.spans[k * 2] end
    end
    reply = reply .. pack('<I7I6I6', used, newest, fits_at)
  end
  return reply
end

-- Settles units in the newest step of each section of KEYS[i], if none is due and some are left in it. Returns as
-- `charge_due`. Where a check has limits, a settlement has the ends of the charged steps.
local function settle(task, i, units)
  local front, value, rules, at = fronts[i], stored[i], task.rules, 14 + task.rules * 14
  if task.are_buckets then return end
  if task.action == 3 then units = -units end -- it takes them
  for k = 1, rules do
    local newest, _, base, length, room, width = unpack(HEAD, value, at)
    local used, before = front[k + 1] + units, 0
    if front[k + rules + 1] <= now or newest ~= task.limits[k + 1] or width > 1 then return end
    if length > 0 then before = (unpack('<I2', value, at + HEAD_SIZE + length - 2) - base) % WRAP end
    if used <= before or used >= 9007199254740992 then return end
    at = at + HEAD_SIZE + room
  end
  return charge(task, i, units)
end

-- Makes the function that renews slots, for the calls that need it.
local function renewing()
  -- The queue of KEYS[i] after units were taken from the step that ends at `stop`, with its newest step as the last
  -- entry; and when that step ends, and the base. Returns nothing if the plain script has to.
  local function without(task, i, stop, units)
    local step, retention, value = task.spans[1], task.spans[2], stored[i]
    local used, newest, first, base, width, live, behind, at, limit = read_section(task, i, 1)
    local is_there = used and first <= stop and stop <= newest
    if not is_there or width > 1 or used >= WRAP or retention / step >= 4096 then return end
    local count, before, last = (behind - live) / ENTRY_SIZE, 0, newest
    if count == 0 then base = 0 end
    local k = last_below(value, live, 0, count + 1, first / step, (stop - first) / step)
    local entries = { sub(value, live, live + k * ENTRY_SIZE - 1) }
    if k > 0 then
      local number, total = unpack('<I2I2', value, live + (k - 1) * ENTRY_SIZE)
      before, last = (total - base) % WRAP, newest - (newest / step - number) % WRAP * step
    end
    for e = k + 1, count + 1 do
      local number, total = newest / step % WRAP, used
      if e <= count then
        number, total = unpack('<I2I2', value, live + (e - 1) * ENTRY_SIZE)
        total = (total - base) % WRAP
      end
      if e == k + 1 and (number ~= stop / step % WRAP or total - before < units) then return end
      if e > k + 1 or total - before > units then
        entries[#entries + 1], last = pack('<I2I2', number, (base + total - units) % WRAP), newest
      end
    end
    return table.concat(entries), last, base, used, at, limit
  end

  -- Moves the slots of KEYS[i] to the step of now. Where a check has a limit, a renewal has the end of their step.
  -- Returns its reply, or nothing if the plain script has to.
  return function(task, i)
    if not fits(task, i, 0) then return end
    local step, retention, value, expires = task.spans[1], task.spans[2], stored[i], fronts[i][5]
    local queue, last, base, used, at, limit = without(task, i, task.limits[2], task.units)
    if not queue then return end
    local newest, width = now - now % step + step, 1
    if used == task.units then
      base, width = 0, 0
    elseif last == newest then
      queue = sub(queue, 1, -ENTRY_SIZE - 1)
    elseif #queue == ENTRY_SIZE then -- the base begins with the first entry
      base, queue = 0, pack('<I2I2', last / step % WRAP, used - task.units)
    end
    local length, room, first = #queue, limit - at - HEAD_SIZE, newest
    if length > room or room > 64 and length * 4 < room then return end
    if length > 0 then first = newest - (newest / step - unpack('<I2', queue)) % WRAP * step end
    local release = newest + retention
    if expires < release or release + 60000 < expires then
      expires = release + math.min(math.max(step, retention), 60000)
      expiries[i] = expires
    end
    local front = pack(task.front_format, 1, used, math.min(newest, first + retention), newest - step, expires)
    local changed = front .. pack(HEAD, newest, first, base, length, room, width) .. queue
    values[i] = expiries[i] and changed .. sub(value, #changed + 1) or changed
    return '\1\1\0\0\0\2' .. sub(front, 1, 8), 1
  end
end
local renew -- once an operation needs it

-- Decides an operation, as the plain script's `decide`. Returns nothing if that has to.
local function fast_path(first, last, next_block, checks_before)
  local task, is_admitted = tasks[ARGV[first]] or read_task(ARGV[first]), true
  local action, count = task.action, task.count
  for i = next_block, next_block + task.block_count - 1 do
    stored[i] = pcall_redis('GET', KEYS[i])
    if stored[i] then return end
  end
  if action == RENEWAL then
    renew = renew or renewing()
    if first == last then return renew(task, first) end
    return
  end
  if action == 1 then count = checks_before end
  if action < 2 and count == 0 then return '\2', 0 end
  for i = first, last do
    local fit = fits(tasks[ARGV[i]] or read_task(ARGV[i]), i, action < 2 and count or 0)
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
