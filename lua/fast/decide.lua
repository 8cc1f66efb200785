-- The fast path: decides the common case several times as fast as the plain script, and has no other purpose.
--
-- The common case is a check of keys that are new, or hold the sections of the caller's rules and no others, while no
-- clock has stepped back. The fast path charges such keys, opens and releases steps, or denies. A settlement charges the
-- same way, or takes from the newest step. It hands over any other operation before any write, by leaving no `reply`: for
-- example a policy with buckets or a queue beside other rules, a block, another period of the calendar, entries that have
-- to become wide, a batch that is not admitted whole, units to take from an older step. It reads only the parts of a value
-- that it needs, so another spoiled part may go unnoticed. To change the meaning of the script, change the plain script,
-- which gives the same answers alone. One slot is decided here, and several by the file for both.
--
-- This is the body of a loop and no function, since functions cost time in each call: see README.md.

-- The part that denies; from which part on a denial begins again, and the reply up to there.
local action, i, denied, again, kept = task.action, first, nil, nil, nil
local is_check = action <= SHADOWS
count = action == SHADOWS and admitted or task.count
if is_check and count == 0 then
  reply, i = '\2', last + 1 -- shadows of a check that was not admitted
elseif is_check then
  reply = count == 1 and '\1\1\0\0\0' or pack('<I1I4', 1, count)
elseif action == ADD or action == TAKE or action >= RENEW then
  reply = '\1'
else
  blocks_found = 1 -- the plain script decides, and may write a block
end
if block_count > 0 and not blocks_found then -- asks once for the whole call; Lua surely passes on 4000 keys
  blocks_found = #KEYS - last_part > 4000 or try('EXISTS', spread(KEYS, last_part + 1))
end
if block_count > 0 and blocks_found ~= 0 then
  for block = next_block, next_block + block_count - 1 do
    local held = try('GET', KEYS[block])
    stored[block] = held
    -- A block that has ended may be kept for the level of its ban.
    if held and (#held < 18 or unpack('<I6', held) > now or sub(held, 8, 8) ~= '\1') then reply = nil end
  end
end

while fast_path and reply and i <= last do
  task = tasks[ARGV[i]]
  if task.policy == nil then task.policy = read_policy(task, ARGV[i], tasks) end
  local policy, units, fits, form, counts = task.policy, task.units * count, true, '\1', nil
  local class = policy and policy.class

  if i == denied then
    form, counts = '', values[i]
  elseif class == SLOTS then
    again, kept = again or i, kept or reply
    local key, id, latest, used = KEYS[i], sub(ARGV[i], -16), now + policy.window, nil
    local bound, is_one = format('%.0f', latest), task.count == 1 and (units == 1 or action >= RENEW)
    after_now = after_now or format('(%.0f', now)
    used = is_one and not denied and try('ZCOUNT', key, after_now, bound)
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
      slots = slots or rare('slots')(now, slack, expire, tasks, stored, values, expiries, try, spread)
      is_one, fits, counts = pcall(slots, i, policy, action, count, denied)
      if not is_one then counts = nil end
    end
  elseif class and action < RENEW then
    -- An error is a table, whose `#` is 0.
    local value = again and (denied and stored[i] or fronts and fronts[i]) or try('GETRANGE', KEYS[i], '0', policy.upto)
    if class == STEPS and #value > 63 and is_check and units > 0 then
      local is, since, due, others, expires, newest, base, used, second, third = unpack(policy.front, value)
      -- The entries of a value are narrow or wide: 0 or 1. The limits of the two differ.
      local rules, wide, total = policy.rules, is - policy.mark, used + units
      local is_usual = since <= now and now < others and (wide == 0 or wide == 1)
      local fit = is_usual and (rules == 1 or second + units <= policy[wide * 3 + 2] and third + units <= policy[wide * 3 + 3])
      if fit and now < due and total <= policy[wide * 3 + 1] then
        counts = rules == 1 and pack('<I7', total) or pack(policy.counts, total, second + units, third + units)
        values[i], offsets[i], form = counts, '43', '\2'
      elseif denied or total > policy[4]
        or not fit and rules > 1 and (second + units > policy[5] or third + units > policy[6]) then
        if not deny then usage_of, deny, queue = rare('usage')(now, stored, values, expiries, sub, pack, unpack, read_period) end
        if is_usual and now < due then
          counts = deny(policy, i, value, wide, base, units, used, second, third)
          if counts then fits, form = false, '\3' end
        else
          fits, counts = usage_of(policy, i, value, units, is, since, due, others, newest, base, used, second, third)
          if fits and not denied then counts = nil end
        end
      else
        if i < last and not again then -- before the first dear charge: does a later key deny?
          fronts = fronts or { nil, nil, nil, nil, nil, nil, nil, nil }
          for k = i + 1, last do
            local later = tasks[ARGV[k]]
            if later.policy == nil then later.policy = read_policy(later, ARGV[k], tasks) end
            local of, more = later.policy, later.units * count
            fronts[k] = of and of.class == STEPS and try('GETRANGE', KEYS[k], '0', of.upto)
            if fronts[k] and #fronts[k] > 63 then
              local one, two, three = unpack('<I7I7I7', fronts[k], 44)
              if one + more > of[4] or two + more > of[5] or three + more > of[6] then
                if not deny then usage_of, deny, queue = rare('usage')(now, stored, values, expiries, sub, pack, unpack, read_period) end
                local are_in, usage = usage_of(of, k, fronts[k], more)
                if usage and not are_in then
                  fronts[i], fits, counts, again, kept, i = value, false, usage, i, reply, k
                  break
                end
              end
            end
          end
        end
        if not counts and fit and now >= due and wide == 0 then -- the first rule alone is due
          if policy ~= prepared then -- what follows from the policy and the time
            prepared, step, retention, places = policy, unpack('<I6I6I4', policy.arg, 27 + rules * 7)
            start, ring_at, places, lag = now - now % step, 44 + rules * 7, places / 2, retention % step
            number, gone = start / step + 1, (now - retention - (now - retention) % step) / step -- `gone` is released
            ring_end, gone_at, release = ring_at + places * 2 - 1, ring_at + gone % places * 2, start + step + retention
            current, ahead = start + step, lag > 0 and start + lag > now and start + lag or start + step
            window = retention < step and step or retention
          end
          if newest <= current and #value >= ring_end then -- else `rep` could get any number
            local newest_number, head, tail = newest / step, nil, nil
            if newest + retention <= now then -- all are released
              used, base, head, tail = 0, 0, '', rep('\0\0', places)
            else
              local gap, place, entry = number - newest_number, newest_number % places, pack('<I2', (base + used) % 65536)
              if gone >= newest_number - places then
                total, base = base + used, unpack('<I2', value, gone_at)
                used = (total - base) % 65536
              end
              local behind = place + gap - places
              if behind > 0 then -- at the ring's end, entries go on at the beginning
                head = rep(entry, behind) .. sub(value, ring_at + behind * 2, ring_at + place * 2 - 1)
                tail = rep(entry, places - place)
              else
                head, tail = sub(value, ring_at, ring_at + place * 2 - 1), gap == 1 and entry or rep(entry, gap)
              end
            end
            used = used + units
            if rules > 1 then second, third = second + units, third + units end
            if used <= policy[1] then
              if release > expires then -- one window and a second later, but at most a minute: 60000 ms
                expires = release + (window < 59000 and window + 1000 or 60000)
                expiries[i] = expires
              end
              value = pack(policy.front, is, start > since and start or since, ahead, others, expires, current, base, used, second, third)
              counts, form = sub(value, 44), '\2'
              values[i], offsets[i] = value .. head .. tail, '0'
              if last > first then again, kept = again or i, kept or reply end
            end
          end
        end
      end
    end
    local is_charge = units > 0 and not denied
    if not counts and class == BUCKETS and is_check and (value == '' or #value > 63 and unpack('<I6', value) == policy.mark) then
      buckets = buckets or rare('bucket')(now, values, expiries, offsets, rep, sub, pack, unpack, spread)
      fits, form, counts = buckets(policy, i, value, units, denied)
    elseif class == QUEUE and is_check and (value == '' or #value > 63) then
      if not deny then usage_of, deny, queue = rare('usage')(now, stored, values, expiries, sub, pack, unpack, read_period) end
      fits, form, counts = queue(policy, i, value, units, denied)
      again, kept = again or i, kept or reply
    elseif not counts and class < BUCKETS and (value == '' or #value > 63) then
      if is_charge then
        steps = steps
          or rare('steps')(now, ADD, TAKE, KEYS, ARGV, stored, values, offsets, expiries, try, rep, sub, pack, unpack, spread, read_period)
        counts = steps(policy, i, value == '', units, task.action)
        if counts then fits, form = true, '\2' end
        if counts and value ~= '' then again, kept = again or i, kept or reply end
      end
      if not counts then
        if not deny then usage_of, deny, queue = rare('usage')(now, stored, values, expiries, sub, pack, unpack, read_period) end
        fits, counts = usage_of(policy, i, value, is_check and units or -2 ^ 60) -- settlements fit whatever is used
        if fits and is_charge then counts = nil end
      end
    end
  end

  if not reply or not counts or not fits and count > 1 then -- of several checks, some may fit
    reply = nil
    break
  end

  if fits or denied then
    reply, i = reply .. form .. counts, i + 1
  else -- what most keys before have replied is right for a denial, too
    denied, values[i] = i, form .. counts
    reply, i = '\1\0\0\0\0' .. (i > first and sub(kept or reply, 6) or '') .. (again and '' or values[i]), again or i + 1
  end
end
if denied and reply then first, count = last + 1, 0 end -- so that nothing is written
