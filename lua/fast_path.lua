-- The fast path: decides the checks and settlements of which most calls consist, several times as fast as the plain script.
--
-- It takes operations on keys that exist and hold the sections of the caller's rules and no others, while no clock has stepped
-- back. Then it charges sections as they stand, opens steps, releases others, or denies; or settles a step that is the newest.
-- It returns nothing when anything else is to be done (somebody is blocked, a key is new, numbers outgrow
-- their entries), and raises an error when a value cannot be read: the plain script then begins the operation anew, as
-- nothing has been changed. Whoever changes what the script means changes the plain script; without this file it is slower
-- and answers the same.

local pack, unpack, spread, sub, pcall_redis = struct.pack, struct.unpack, unpack or table.unpack, string.sub, redis.pcall
local BUCKET = 2 ^ 47 -- is added to the period of a bucket, in a label
local HEAD = '<I6I6I7I4I4I1'
local HAND_OVER = 4 -- this and all higher actions are left to the plain script
local tasks = {} -- what an argument asks for, as the arguments of a call are mostly alike
local fronts = {} -- of KEYS[i]: the numbers that its value begins with

local function read_task(arg)
  local action, count, units, block_count, rules = unpack('<I1I4I7I1I1', arg, 2)
  rules, action = rules % 128, action % JOINED
  if action == 3 then units = -units end -- a settlement that takes
  local used_format, front_format, spans_format = '<I1I7', '<I1I7I7I6I6', '<I6I6' -- of one rule
  if rules == 3 then -- as many services have
    used_format, front_format, spans_format = '<I1I7I7I7', '<I1I7I7I7I7I7I7I6I6', '<I6I6I6I6I6I6'
  elseif rules ~= 1 then
    local each = string.rep('I7', rules)
    used_format, front_format, spans_format = '<I1' .. each, '<I1' .. each .. each .. 'I6I6', '<' .. string.rep('I6I6', rules)
  end
  local labels_at = 16 + rules * 7
  local spans = { unpack(spans_format, arg, labels_at) }
  for k = 1, rules * 2, 2 do
    local kind = spans[k] / 2 ^ 44 -- of steps 0, of a bucket 8
    if kind >= 1 and kind < 8 or kind >= 9 then action = HAND_OVER end
  end
  local read = {
    action = action, count = count, units = units, block_count = block_count, rules = rules, labels = sub(arg, labels_at),
    limits = { unpack(used_format, arg, 15) }, -- from [2] on, as what rules use in a front
    spans = spans, -- for each rule the two numbers of its label
    used_format = used_format, front_format = front_format,
  }
  tasks[arg] = read
  return read
end

-- How many of so many numbers in a queue, which grow and stand `size` bytes apart, are less than `bound` above `origin`.
local function count_below(value, at, count, format, size, wrap, origin, bound)
  local low, high, probe = 0, count + 1, 1
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    if (unpack(format, value, at + (probe - 1) * size) - origin) % wrap < bound then
      low, probe = probe, probe * 2
    else
      high, probe = probe, high
    end
  end
  return low
end

-- Of a width: the format of an entry and of one of its numbers, its size, and what both are counted modulo.
local function entry_format(width)
  if width < 2 then return '<I2I2', '<I2', 4, 65536 end
  if width == 2 then return '<I4I4', '<I4', 8, 4294967296 end
  return '<I7I7', '<I7', 14, 9007199254740992
end

-- Reads a section without the steps that are released: used, newest, first, base, width, where live entries begin and end, and
-- where their room ends.
local function read_section(value, at, step, retention, used, time)
  local newest, first, base, length, room, width = unpack(HEAD, value, at)
  local live, behind = at + 28, at + 28 + length
  if length > room or live + room > #value then error('a queue is longer than its value') end
  if newest + retention <= time then return 0, 0, 0, 0, 0, behind, behind, live + room end
  if first + retention <= time then
    local format, half, size, wrap = entry_format(width)
    local number, gone = newest / step, 1
    local kept = (newest + retention - time) / step -- a step that is at least so many steps before the newest is released
    local total, following = unpack(format, value, live + size / 2) -- the total of an entry, and the step of the next
    if size < length and (number - following) % wrap >= kept then
      local bound = number - first / step - kept
      gone = count_below(value, live, length / size, half, size, wrap, first / step, bound - bound % 1 + 1)
      total, following = unpack(format, value, live + gone * size - size / 2)
    end
    live, used, base = live + gone * size, used - (total - base) % wrap, total
    first = live < behind and newest - (number - following) % wrap * step or newest
  end
  return used, newest, first, base, width, live, behind, at + 28 + room
end

-- Reads KEYS[i] and tests whether the units fit. Returns nothing if the plain script has to.
local function fits(task, i, units)
  if task.action >= HAND_OVER then return end -- it has a rule of another kind
  local value, rules, limits, spans = pcall_redis('GET', KEYS[i]), task.rules, task.limits, task.spans
  stored[i] = value
  if not value or sub(value, -#task.labels) ~= task.labels then return end
  local front = { unpack(task.front_format, value) } -- count, used of each, due of each, since, expires
  if front[1] ~= rules or front[rules * 2 + 2] > now or front[rules * 2 + 3] <= now then return end
  fronts[i] = front
  local at, reached, fit = 14 + rules * 14, 1, true
  for k = 1, rules do
    local step, room = spans[k * 2 - 1], limits[k + 1] - front[k + 1]
    if step > BUCKET then -- what is missing, and the time, replace what the front has of them
      local period, refill, elapsed = step - BUCKET, spans[k * 2], now - front[k + rules + 1]
      if elapsed < 0 then return end
      local missing = front[k + 1]
      missing = elapsed < missing / refill and missing - elapsed * refill or 0
      front[k + 1], front[k + rules + 1], room = missing, now, (limits[k + 1] * period - missing) / period
    elseif units > room and front[k + rules + 1] <= now then -- what is released may make room
      for _ = reached, k - 1 do at = at + 28 + unpack('<I4', value, at + 23) end
      reached, room = k, limits[k + 1] - read_section(value, at, step, spans[k * 2], front[k + 1], now)
    end
    if units > room then fit = false end
  end
  return fit
end

-- Leaves to be written what KEYS[i] holds after a charge of units. Returns its count and what its rules use, or nothing if the
-- plain script has to do it.
local function charge(task, i, units)
  local front, rules, is_due = fronts[i], task.rules, false
  for k = rules + 2, rules * 2 + 1 do is_due = is_due or front[k] <= now end -- buckets are
  if not is_due then
    for k = 2, rules + 1 do front[k] = front[k] + units end
    values[i] = pack(task.used_format, spread(front, 1, rules + 1))
    return values[i]
  end

  local value, spans = stored[i], task.spans
  local since, expires = front[rules * 2 + 2], front[rules * 2 + 3]
  local release, window = expires, 0
  -- The sections before the last one that changes; it; and where the rest of the value begins. Joined late, as the server
  -- hashes every string.
  local at, reached, changed, head, queue, closed, copied = 14 + rules * 14, 1, '', '', '', '', 14 + rules * 14
  for k = 1, rules do
    local used, step, retention = front[k + 1], spans[k * 2 - 1], spans[k * 2]
    if step > BUCKET then
      local period = step - BUCKET
      used = used + units * (period - 1) -- and units more, below
      if now + (used + units) / retention > release then -- else it is full before the key expires
        release = now + math.min(math.ceil((used + units) / retention), BUCKET)
        window = math.floor(task.limits[k + 1] * period / retention)
      end
    elseif now >= front[k + rules + 1] then
      for _ = reached, k - 1 do at = at + 28 + unpack('<I4', value, at + 23) end
      local newest, first, base, width, live, behind, limit
      used, newest, first, base, width, live, behind, limit = read_section(value, at, step, retention, used, now)
      local own_queue, own_closed, start = sub(value, live, behind - 1), '', now - now % step
      if used == 0 then
        newest, first = start + step, start + step
      elseif now >= newest then
        if width == 0 and retention / step < 4096 then width = 1 end
        local format, _, _, wrap = entry_format(width)
        if width == 0 or used >= wrap or base + used >= 9007199254740992 then return end
        own_closed, newest = pack(format, newest / step % wrap, (base + used) % wrap), start + step
      end
      local length, room = behind - live + #own_closed, limit - at - 28
      local has_room = true
      if length > room then
        has_room, room = false, math.max(length, room > 16 and room * 2 or 32)
      elseif room > 64 and length * 4 < room then
        has_room, room = false, length > 16 and length * 2 or 32
      end
      if head ~= '' or copied < at then changed = changed .. head .. queue .. closed .. sub(value, copied, at - 1) end
      head = pack(HEAD, newest, first, base, length, room, used == 0 and 0 or width)
      queue, closed, copied, reached, at = own_queue, own_closed, at + 28 + length, k + 1, limit
      if not has_room then -- the rest of the value moves, so that all of it is written
        closed, copied, expiries[i] = closed .. string.rep('\0', room - length), limit, expires
      end
      if newest - step > since then since = newest - step end
      if newest + retention > release then release, window = newest + retention, math.max(step, retention) end
      front[k + rules + 1] = math.min(newest, first + retention)
    end
    front[k + 1] = used + units
  end

  if release > expires then
    expires = release + math.min(window, 60000)
    expiries[i] = expires
  end
  front[rules * 2 + 2], front[rules * 2 + 3] = since, expires
  values[i] = pack(task.front_format, spread(front)) .. changed .. head .. queue .. closed .. (expiries[i] and sub(value, copied) or '')
  return sub(values[i], 1, 1 + rules * 7)
end

-- The reply with what is replied of KEYS[i] without a charge; and if units did not fit, when they do.
local function usage(task, i, units, is_denied, reply)
  local front, value, rules, spans = fronts[i], stored[i], task.rules, task.spans
  reply = reply .. '\1'
  local at = 14 + rules * 14
  for k = 1, rules do
    local step, retention, used, fits_at = spans[k * 2 - 1], spans[k * 2], front[k + 1], 0
    local newest, first, base, width, live, behind, limit = front[k + rules + 1], nil, nil, nil, nil, nil, nil
    if step > BUCKET then
      limit = at + 28 + unpack('<I4', value, at + 23)
    else
      used, newest, first, base, width, live, behind, limit = read_section(value, at, step, retention, used, now)
      local excess = used - task.limits[k + 1] + units
      if is_denied and excess == 1 and units <= task.limits[k + 1] then
        fits_at = first + retention
      elseif is_denied and excess > 1 and units <= task.limits[k + 1] then
        local format, half, size, wrap = entry_format(width)
        live = live + count_below(value, live + size / 2, (behind - live) / size, half, size, wrap, base, excess) * size
        local ago = live < behind and (newest / step - unpack(format, value, live)) % wrap or 0
        fits_at = newest - ago * step + retention
      end
    end
    reply, at = reply .. pack('<I7I6I6', used, newest, fits_at), limit
  end
  return reply
end

-- Settles units in the newest step of each section of KEYS[i], if none is due. Returns the reply with the key's, or nothing if the
-- plain script has to do it. Where a check has limits, a settlement has the ends of the charged steps.
local function settle(task, i, units, reply)
  local front, value, rules = fronts[i], stored[i], task.rules
  reply = reply .. '\1'
  local at = 14 + rules * 14
  for k = 1, rules do
    local newest, _, base, length, room, width = unpack(HEAD, value, at)
    local used, before = front[k + 1] + units, 0
    if task.spans[k * 2 - 1] > BUCKET or now >= front[k + rules + 1] or newest ~= task.limits[k + 1] then return end
    if units < 0 and length > 0 then
      local _, half, size, wrap = entry_format(width)
      before = (unpack(half, value, at + 28 + length - size / 2) - base) % wrap
    end
    if used <= before or used >= 9007199254740992 then return end
    front[k + 1], reply, at = used, reply .. pack('<I7I6I6', used, newest, 0), at + 28 + room
  end
  values[i] = pack(task.used_format, spread(front))
  return reply
end

-- Decides an operation, as the plain script's `decide`. Returns nothing if that has to do it.
local function fast_path(first, last, next_block, checks_before)
  local task = tasks[ARGV[first]] or read_task(ARGV[first])
  local action, count, is_admitted = task.action, task.count, true
  for i = next_block, next_block + task.block_count - 1 do
    stored[i] = pcall_redis('GET', KEYS[i])
    if stored[i] then return end
  end
  if action == 1 then count = checks_before end
  if action >= HAND_OVER then return end
  if count == 0 then return '\2', 0 end
  for i = first, last do
    if i > first then task = tasks[ARGV[i]] or read_task(ARGV[i]) end
    local fit = fits(task, i, action < 2 and task.units * count or 0)
    if fit == nil then return end
    is_admitted = is_admitted and fit
  end
  if count > 1 and not is_admitted then return end -- some may fit

  if not is_admitted then count = 0 end
  local reply = action > 1 and '\1' or count == 1 and '\1\1\0\0\0' or pack('<I1I4', 1, count)
  for i = first, last do
    if last > first then task = tasks[ARGV[i]] end
    local units = task.units
    if action > 1 then
      reply = settle(task, i, units, reply)
    elseif count == 0 or units == 0 then
      reply = usage(task, i, units, count == 0, reply)
    else
      local counts = charge(task, i, units * count)
      reply = counts and reply .. '\2' .. counts
    end
    if not reply then return end
  end
  return reply, count
end
