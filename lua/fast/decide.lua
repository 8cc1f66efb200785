-- The fast path: decides the common case several times as fast as the plain script, and has no other purpose.
--
-- The common case is a check of keys that exist and hold the sections of the caller's rules and no others, while no
-- clock has stepped back. The fast path charges such keys as they are, opens steps, releases others, or denies. A
-- settlement charges the same way, or takes from the newest step. The fast path also renews slots. It hands over any
-- other operation before any write, by leaving no `reply`: for example a policy with rules of two kinds, a block, a new
-- key, another period of the calendar, wide entries, a queue without room, a batch that is not admitted whole, units to
-- take from an older step, lost slots. It reads only the parts of a value that it needs, so another spoiled part may go
-- unnoticed. To change the meaning of the script, change the plain script, which gives the same answers alone.
--
-- This is the body of a loop and no function, since functions cost time in each call: see README.md.

local action, is_denied, i = task.action, false, first
local is_check = action <= SHADOWS
count = action == SHADOWS and admitted or task.count
if is_check and count == 0 then
  reply, i = '\2', last + 1 -- shadows of a check that was not admitted
elseif action == ADD or action == TAKE then
  reply = '\1'
elseif is_check or action == RENEW then
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
  local policy, units, value = task.policy, task.units * count, stored[i] or try('GET', KEYS[i])
  stored[i] = value

  -- The front of the value: count, used of each, due of each, since, expires: [1], [k + 1], [k + rules + 1],
  -- [rules * 2 + 2], [rules * 2 + 3]. An error of Redis has no size.
  local is_laid_out = policy and value and #value >= policy.least_size and sub(value, -#policy.ending) == policy.ending
  local front, rules = is_laid_out and { unpack(policy.front_format, value) }, policy and policy.rules
  if not front or front[1] ~= rules or front[rules * 2 + 2] > now or front[rules * 2 + 3] <= now then
    reply = nil
    break
  end

  -- Whether the units fit, and whether a step has to be opened or released.
  local kind, limits, fits, is_due, form, usage, counts = policy.kind, policy.limits, true, false, '\2', nil, nil
  if kind ~= BUCKET then
    for k = 2, rules + 1 do
      if units > (is_check and limits[k] or 2 ^ 53 - 1) - front[k] then fits = false end -- settlements have no limit
      if front[k + rules] <= now then is_due = true end
      if kind == CALENDAR and front[k + rules] ~= policy.labels[k * 2 - 2] then reply = nil end -- another period
    end
    if is_check and (is_denied or not fits or units == 0) then -- released steps may make room
      usage, fits = usage_of(policy, value, front, units)
    end
  end

  -- Charges, settles, renews or only looks. Without `counts`, the plain script has to decide.
  if action == RENEW or task.action == TAKE then
    if not settle then settle, take = fast_settlement(now, values, pack, unpack, sub, spread) end
    fits = true
    if task.action == TAKE and kind ~= BUCKET then
      counts = settle(policy, i, value, front, units)
    elseif action == RENEW and kind == CONCURRENCY and rules == 1 then
      charge = charge or fast_charge(now, values, expiries, read_section, pack, unpack, sub, spread)
      -- The last 6 bytes of the part are the end of the charged step.
      counts = charge(policy, i, value, front, units, take, unpack('<I6', ARGV[i], #ARGV[i] - 5))
    end
  elseif kind == BUCKET then
    if is_check then
      take_buckets = take_buckets or fast_bucket(now, values, pack, spread)
      fits, form, counts = take_buckets(policy, i, front, units, is_denied)
    end
  elseif is_check and (is_denied or not fits or units == 0) then
    form, counts = '\1', usage
  elseif is_due and fits and units > 0 then
    charge = charge or fast_charge(now, values, expiries, read_section, pack, unpack, sub, spread)
    counts = charge(policy, i, value, front, units)
  elseif not is_due and fits then
    for k = 2, rules + 1 do front[k] = front[k] + units end
    counts = pack(policy.used_format, spread(front, 1, rules + 1))
    if units > 0 then values[i] = counts end
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
