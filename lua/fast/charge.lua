-- The fast path's charges of keys with a due section: the newest step has ended, or the first is released.
--
-- An entry has 4 bytes: two numbers modulo 2^16. In `front`, [rules * 2 + 2] is since, and [rules * 2 + 3] the expiry.
-- The sections begin at byte 14 + rules * 14: behind the count (1 byte), used and due of each (7 and 7), since and
-- expires (6 and 6).

-- Reads a section as `read_section`, and brings it to the step of now. Returns the used units, the newest step, when
-- the section is due, where it begins, the room, and the bytes: the head, the queue, and a new entry. Returns nothing if
-- the plain script has to decide.
local function open_step(value, section_at, skipped, used, step, retention)
  local newest, first, base, width, live, behind, at, room
  used, newest, first, base, width, live, behind, at, room =
    read_section(value, section_at, skipped, used, step, retention)
  if not used then return end
  local current, queue, entry = now - now % step + step, sub(value, live, behind - 1), ''
  if used == 0 then
    first = current
  elseif newest < current then
    -- So few steps surely fit entries of width 1; the plain script takes up to 65534.
    if width == 0 and retention / step < 4096 then width = 1 end
    if width ~= 1 or used >= 2 ^ 16 then return end
    entry = pack('<I2I2', newest / step % 2 ^ 16, (base + used) % 2 ^ 16)
  end
  local length, due = #queue + #entry, first + retention
  if length > room or room > 64 and length * 4 < room then return end -- too little room, or too much (never up to 64)
  local head = pack('<I6I6I7I4I4I1', current, first, base, length, room, width)
  return used, current, current < due and current or due, at, room, head, queue, entry
end

-- Charges units that fit to KEYS[i]. Returns the number of rules and the used units of each, packed, or nothing if the
-- plain script has to decide.
return function(policy, i, value, front, units)
  local rules, labels, since, expires, window = policy.rules, policy.labels, nil, nil, nil
  local section_at, next_k, copy_from = 14 + rules * 14, 1, 14 + rules * 14
  local changed, head, queue, entry = '', '', '', '' -- joined late, as the server hashes each string
  since, expires = front[rules * 2 + 2], front[rules * 2 + 3]
  for k = 1, rules do
    local used = front[k + 1]
    if front[k + rules + 1] <= now then
      local step, retention, newest, due, at, room = labels[k * 2 - 1], labels[k * 2], nil, nil, nil, nil
      changed = changed .. head .. queue .. entry
      used, newest, due, at, room, head, queue, entry =
        open_step(value, section_at, k - next_k, used, step, retention)
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
  if window then -- with the expiry, the whole value is written
    -- One window later, but at most a minute: 60000 ms.
    expires, entry = expires + (window < 60000 and window or 60000), entry .. sub(value, copy_from)
    expiries[i] = expires
  end
  front[rules * 2 + 2], front[rules * 2 + 3] = since, expires
  values[i] = pack(policy.front_format, spread(front)) .. changed .. head .. queue .. entry
  return sub(values[i], 1, 1 + rules * 7)
end
