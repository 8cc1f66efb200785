-- The fast path's charges of keys of which a section is due: its newest step has ended, or its first is released. A
-- renewal charges what it has taken from another step.

-- Reads a section as `read_section`, and brings it to the step of now. With `take`, takes units from the step that ends
-- at `renewed`. Returns what is used, its newest step, when it is due, where it begins, its room, and its bytes: the
-- head, the queue, and a new entry. Returns nothing if the plain script has to.
local function open_step(value, section_at, skipped, used, step, retention, take, renewed, units)
  local newest, first, base, width, live, behind, at, room
  used, newest, first, base, width, live, behind, at, room =
    read_section(value, section_at, skipped, used, step, retention)
  if not used then return end
  local current, queue, entry = now - now % step + step, sub(value, live, behind - 1), ''
  if renewed == newest and used == units and queue == '' then -- this is all that is used
    used, take = 0, nil
  end
  if used == 0 then
    first = current
  elseif newest < current then
    if width == 0 and retention / step < 4096 then width = 1 end
    if width ~= 1 or used >= 2 ^ 16 then return end
    entry = pack('<I2I2', newest / step % 2 ^ 16, (base + used) % 2 ^ 16)
  end
  if take then
    queue, entry = queue .. entry, ''
    queue = width == 1 and #queue % 4 == 0 and take(queue, base, renewed / step % 2 ^ 16, units)
    if not queue then return end
    used = used - units
    first = queue ~= '' and current - (current / step - unpack('<I2', queue)) % 2 ^ 16 * step or current
  end
  local length, due = #queue + #entry, first + retention
  if length > room or room > 64 and length * 4 < room then return end -- there is too little room, or too much
  local head = pack('<I6I6I7I4I4I1', current, first, base, length, room, width)
  return used, current, current < due and current or due, at, room, head, queue, entry
end

-- Charges units that fit to KEYS[i]. With `take`, moves them from the step that ends at `renewed`. Returns the count of
-- its rules and what each uses, or nothing if the plain script has to.
return function(policy, i, value, front, units, take, renewed)
  local rules, labels, since, expires, window = policy.rules, policy.labels, nil, nil, nil
  local section_at, next_k, copy_from = 14 + rules * 14, 1, 14 + rules * 14
  local changed, head, queue, entry = '', '', '', '' -- joined late, as the server hashes each string
  since, expires = front[rules * 2 + 2], front[rules * 2 + 3]
  for k = 1, rules do
    local used = front[k + 1]
    if take or front[k + rules + 1] <= now then
      local step, retention, newest, due, at, room = labels[k * 2 - 1], labels[k * 2], nil, nil, nil, nil
      changed = changed .. head .. queue .. entry
      used, newest, due, at, room, head, queue, entry =
        open_step(value, section_at, k - next_k, used, step, retention, take, renewed, units)
      if not used then return end
      if copy_from < at then changed = changed .. sub(value, copy_from, at - 1) end
      copy_from, section_at, next_k = at + #head + #queue + #entry, at + #head + room, k + 1
      front[k + rules + 1] = due
      if newest - step > since then since = newest - step end
      if newest + retention > expires then
        expires, window = newest + retention, retention < step and step or retention
      end
    end
    front[k + 1] = used + units
  end
  if window then -- all is written, as the expiry is
    expires, entry = expires + (window < 60000 and window or 60000), entry .. sub(value, copy_from)
    expiries[i] = expires
  end
  front[rules * 2 + 2], front[rules * 2 + 3] = since, expires
  values[i] = pack(policy.front_format, spread(front)) .. changed .. head .. queue .. entry
  return sub(values[i], 1, 1 + rules * 7)
end
