-- The fast path: decides the common case several times as fast as the plain script, and has no other purpose.
--
-- The common case is a check of keys that exist and hold the sections of the caller's rules and no others, while no
-- clock has stepped back. The fast path charges such keys as they are, opens steps, releases others, or denies. A
-- settlement charges the same way, or takes from the newest step. It hands over any other operation before any write, by
-- leaving no `reply`: for example a policy with rules of two kinds, a block, a new key, another period of the calendar,
-- wide entries, a queue without room, a batch that is not admitted whole, units to take from an older step. It reads
-- only the parts of a value that it needs, so another spoiled part may go unnoticed. To change the meaning of the script,
-- change the plain script, which gives the same answers alone. One slot is decided here, and several by the file for both.
--
-- This is the body of a loop and no function, since functions cost time in each call: see README.md.

local action, is_denied, i = task.action, false, first
local is_check = action <= SHADOWS
count = action == SHADOWS and admitted or task.count
if is_check and count == 0 then
  reply, i = '\2', last + 1 -- shadows of a check that was not admitted
elseif action == ADD or action == TAKE or action >= RENEW then
  reply = '\1'
elseif is_check then
  reply = count == 1 and '\1\1\0\0\0' or pack('<I1I4', 1, count)
else
  blocks_found = 1 -- the plain script decides, and may write a block
end
if block_count > 0 and not blocks_found then -- asks once for the whole call; Lua surely passes on 4000 keys
  blocks_found = #KEYS - last_part > 4000 or try('EXISTS', spread(KEYS, last_part + 1))
end
for block = next_block, next_block + block_count - 1 do
  stored[block] = blocks_found ~= 0 and try('GET', KEYS[block])
  if stored[block] then reply = nil end
end

while fast_path and reply and i <= last do
  task = tasks[ARGV[i]]
  if task.policy == nil then task.policy = read_policy(task, ARGV[i], tasks, now) end
  local policy, units, fits, form, usage, counts, front = task.policy, task.units * count, true, '\1', nil, nil, nil
  local kind, rules = policy and policy.kind, policy and policy.rules

  -- The front of the value: count, used of each, due of each, since, expires: [1], [k + 1], [k + rules + 1],
  -- [rules * 2 + 2], [rules * 2 + 3]. An error of Redis has no size.
  if kind == CONCURRENCY then
    local key, id, latest, used = KEYS[i], sub(ARGV[i], -16), now + policy.window, nil
    local bound, is_one = format('%.0f', latest), task.count == 1 and (units == 1 or action >= RENEW)
    after_now = after_now or format('(%.0f', now)
    used = is_one and not is_denied and try('ZCOUNT', key, after_now, bound)
    if type(used) == 'number' then
      local score = used > 0 and try('ZMSCORE', key, id)[1] -- nothing after an error, and false if there is no such id
      local ends = tonumber(score or 0)
      local is_held, is_free = ends > now and ends <= latest, score == false and used < policy.limit
      if is_check and is_free or action == RENEW and is_held then
        values[i], expiries[i] = { { bound, id } }, policy.window
        counts = is_check and pack('<I7I6I6', used + 1, latest, 0) or pack('<I7I6I6I1', used, latest, 0, 1)
      elseif action > RENEW and is_held and try('ZREM', key, id) == 1 then
        local newest = used > 1 and try('ZREVRANGEBYSCORE', key, bound, after_now, 'WITHSCORES', 'LIMIT', 0, 1)[2] or 0
        counts = pack('<I7I6I6I1', used - 1, tonumber(newest), 0, 1)
      end
    end
    if not counts then
      slots = slots or slots_script(now, slack, expire, tasks, stored, values, expiries, try, spread)
      is_one, fits, counts = pcall(slots, i, policy, action, count, is_denied)
      if not is_one then counts = nil end
    end
  elseif policy and action < RENEW then
    local value = stored[i] or try('GET', KEYS[i])
    stored[i] = value
    if value and #value >= policy.least_size and sub(value, -#policy.ending) == policy.ending then
      front = { unpack(policy.front_format, value) }
    end
  end

  -- Charges, settles or only looks. Without `counts`, the plain script has to decide.
  if front and front[1] == rules and front[rules * 2 + 2] <= now and front[rules * 2 + 3] > now then
    -- Whether the units fit, and whether a step has to be opened or released.
    local limits, is_due = policy.limits, false
    if kind ~= BUCKET then
      for k = 2, rules + 1 do
        if units > (is_check and limits[k] or 2 ^ 53 - 1) - front[k] then fits = false end -- settlements have no limit
        if front[k + rules] <= now then is_due = true end
        if kind == CALENDAR and front[k + rules] ~= policy.labels[k * 2 - 2] then reply = nil end -- another period
      end
      if is_check and (is_denied or not fits or units == 0) then -- released steps may make room
        usage, fits = usage_of(policy, stored[i], front, units)
      end
    end
    if task.action == TAKE then
      settle, fits, form = settle or fast_settlement(now, values, pack, unpack, spread), true, '\2'
      counts = kind ~= BUCKET and settle(policy, i, stored[i], front, units)
    elseif kind == BUCKET then
      if is_check then
        take_buckets = take_buckets or fast_bucket(now, values, pack, spread)
        fits, form, counts = take_buckets(policy, i, front, units, is_denied)
      end
    elseif is_check and (is_denied or not fits or units == 0) then
      counts = usage
    elseif fits then
      form = '\2'
      if is_due and units > 0 then
        charge = charge or fast_charge(now, values, expiries, read_section, pack, sub, spread)
        counts = charge(policy, i, stored[i], front, units)
      elseif not is_due then
        for k = 2, rules + 1 do front[k] = front[k] + units end
        counts = pack(policy.used_format, spread(front, 1, rules + 1))
        if units > 0 then values[i] = counts end
      end
    end
  end
  if not reply or not counts or not fits and count > 1 then -- of several checks, some may fit
    reply = nil
    break
  end

  if fits or is_denied or i == first then
    if not fits and not is_denied then is_denied, reply = true, '\1\0\0\0\0' end
    reply, i = reply .. form .. counts, i + 1
  else -- begin again, to reply with the usage of each key
    is_denied, reply, i = true, '\1\0\0\0\0', first
    for part = first, last do values[part], expiries[part] = nil, nil end
  end
end
if is_denied then count = 0 end
