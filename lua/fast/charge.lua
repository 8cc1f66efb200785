-- The fast path's charges of keys of which a section is due: its newest step has ended, or its first is released.

local pack, sub, spread = struct.pack, string.sub, unpack or table.unpack

-- Reads a section as `read_section`, and brings it to the step of now. Returns what is used, its newest step, when it
-- is due, where it begins, its room, and its bytes: the head, the queue, and a new entry. Returns nothing if the plain
-- script has to.
local function open_step(value, section_at, skipped, used, step, retention)
  local newest, first, base, width, live, behind, at, room
  used, newest, first, base, width, live, behind, at, room =
    read_section(value, section_at, skipped, used, step, retention)
  if not used then return end
  local entry = ''
  if used == 0 then
    newest = now - now % step + step
    first = newest
  elseif newest <= now then
    if width == 0 and retention / step < 4096 then width = 1 end
    if width ~= 1 or used >= 2 ^ 16 then return end
    entry = pack('<I2I2', newest / step % 2 ^ 16, (base + used) % 2 ^ 16)
    newest = now - now % step + step
  end
  local length, due = behind - live + #entry, first + retention
  if length > room or room > 64 and length * 4 < room then return end -- there is too little room, or too much
  local head = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width)
  return used, newest, newest < due and newest or due, at, room, head, sub(value, live, behind - 1), entry
end

-- Charges units that fit to KEYS[i]. Returns the count of its rules and what each uses, or nothing if the plain script
-- has to.
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
  if window then -- all is written, as the expiry is
    expires, entry = expires + (window < 60000 and window or 60000), entry .. sub(value, copy_from)
    expiries[i] = expires
  end
  front[rules * 2 + 2], front[rules * 2 + 3] = since, expires
  values[i] = pack(policy.front_format, spread(front)) .. changed .. head .. queue .. entry
  return sub(values[i], 1, 1 + rules * 7)
end
