-- The fast path's checks and settlements: what they write, and what they reply.

-- The k-th section of KEYS[i], with the current step as its newest: used, newest, first, where it begins, and its
-- bytes: the head, the queue and a new entry. Returns nothing if the plain script has to.
local function open_step(policy, i, k)
  local used, newest, first, base, width, live, behind, at, room_end = read_section(policy, i, k)
  local step, closed = policy.steps[k], ''
  if not used then return end
  if used == 0 then
    newest = now - now % step + step
    first = newest
  elseif now >= newest then
    if width == 0 and policy.retentions[k] / step < 4096 then width = 1 end
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
local function charge_due(policy, i, units)
  local front, value, rules, window = fronts[i], stored[i], policy.rules, nil
  local since, expires, copy_from = front[rules * 2 + 2], front[rules * 2 + 3], 14 + rules * 14
  local changed, head, queue, closed = '', '', '', '' -- joined late, as the server hashes each string
  for k = 1, rules do
    if front[k + rules + 1] <= now then
      local step, retention, used, newest, first, at = policy.steps[k], policy.retentions[k], nil, nil, nil, nil
      changed = changed .. head .. queue .. closed
      used, newest, first, at, head, queue, closed = open_step(policy, i, k)
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
  values[i] = pack(policy.front_format, spread(front)) .. changed .. head .. queue .. closed
  return sub(values[i], 1, 1 + rules * 7)
end

-- Charges units to KEYS[i]. Returns as `charge_due`.
local function charge(task, i, units)
  local policy, front, rules = task.policy, fronts[i], task.policy.rules
  if policy.kind == BUCKET then
    for k = 1, rules do
      front[k + 1] = front[k + 1] + units * policy.steps[k]
      if now + front[k + 1] / policy.retentions[k] > front[rules * 2 + 3] then return end -- it expires before it is full
    end
    values[i] = pack(policy.front_format, spread(front))
    return sub(values[i], 1, 1 + rules * 7)
  end
  for k = rules + 2, rules * 2 + 1 do
    if front[k] <= now then return charge_due(policy, i, units) end
  end
  for k = 2, rules + 1 do front[k] = front[k] + units end
  values[i] = pack(policy.used_format, spread(front, 1, rules + 1))
  return values[i]
end

-- The reply with what is used of KEYS[i] without a charge; and, where the units do not fit, when they do. Returns
-- nothing if the plain script has to.
local function usage(task, i, reply)
  local policy, front, value, units = task.policy, fronts[i], stored[i], task.units
  reply = reply .. '\1'
  for k = 1, policy.rules do
    local used, newest, fits_at, step, limit = front[k + 1], nil, 0, policy.steps[k], policy.limits[k + 1]
    local over = used + units - limit
    if policy.stops then
      newest = policy.stops[k]
      fits_at = over > 0 and newest or 0
    elseif policy.kind == BUCKET then
      newest = now -- the caller computes when the units fit
    elseif over <= 0 and front[k + policy.rules + 1] > now then
      newest = now - now % step + step
    else
      local first, base, width, live, behind
      used, newest, first, base, width, live, behind = read_section(policy, i, k)
      over = used and used - limit + units
      if not used or over > 1 and width > 1 then return end
      if over > 1 then -- else the first step makes room
        live = live + last_below(value, live + 2, 0, (behind - live) / ENTRY_SIZE + 1, base, over) * ENTRY_SIZE
        first = live < behind and newest - (newest / step - unpack('<I2', value, live)) % WRAP * step or newest
      end
      fits_at = over > 0 and first + policy.retentions[k] or 0
    end
    reply = reply .. pack('<I7I6I6', used, newest, units <= limit and fits_at or 0)
  end
  return reply
end

-- Settles units in the newest step of each section of KEYS[i], if none is due and some are left in it. Returns as
-- `charge_due`.
local function settle(task, i, units)
  local policy, front, value = task.policy, fronts[i], stored[i]
  local rules, at, end_at = policy.rules, 14 + policy.rules * 14, #ARGV[i] - policy.rules * 6 + 1
  if policy.kind == BUCKET then return end
  if task.action == TAKE then units = -units end
  for k = 1, rules do
    local newest, _, base, length, room, width = unpack(HEAD, value, at)
    local used, before = front[k + 1] + units, 0
    if front[k + rules + 1] <= now or newest ~= unpack('<I6', ARGV[i], end_at) or width > 1 then return end
    if length > 0 then before = (unpack('<I2', value, at + HEAD_SIZE + length - 2) - base) % WRAP end
    if used <= before or used >= 9007199254740992 then return end
    at, end_at = at + HEAD_SIZE + room, end_at + 6
  end
  if units == 0 then return sub(value, 1, 1 + rules * 7) end
  return charge(task, i, units)
end
