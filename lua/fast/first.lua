-- The fast path's charges of keys of which the first rule alone is due, with narrow entries.

-- Charges units, with the numbers of the value's front. Returns the used units of each rule, packed; or nothing if the
-- plain script has to decide, or the other file of steps.
return function(policy, i, value, units, since, others, expires, newest, base, used, second, third)
  local rules, at, step, retention, size = policy.rules, 44 + policy.rules * 7, policy[7], policy[8], policy[9]
  if not step then
    step, retention, size = unpack('<I6I6I4', policy.arg, 27 + rules * 7)
    policy[7], policy[8], policy[9] = step, retention, size
  end
  local current, number, places, changed, added = now - now % step + step, newest / step, size / 2, '', ''
  if newest > current or #value < at + size - 1 then return end -- else `rep` could get any number
  if newest + retention <= now then -- all are released
    used, base, changed = 0, 0, rep('\0\0', places)
  else
    local gone, total, entry = now - retention, base + used, nil
    gone = (gone - gone % step) / step -- the newest step that is released
    if gone >= number - places then
      base = unpack('<I2', value, at + gone % places * 2)
      used = (total - base) % 65536
    end
    local gap, place = current / step - number, number % places
    local behind = place + gap - places
    entry = pack('<I2', total % 65536)
    if behind > 0 then -- at the ring's end, entries go on at the beginning
      changed = rep(entry, behind) .. sub(value, at + behind * 2, at + place * 2 - 1)
      added = rep(entry, places - place)
    else
      changed, added = sub(value, at, at + place * 2 - 1), gap == 1 and entry or rep(entry, gap)
    end
  end
  if used + units > policy[1] then return end
  local lag, due = retention % step, current
  if lag > 0 and current - step + lag > now then due = current - step + lag end
  if current - step > since then since = current - step end
  if current + retention > expires then -- one window later, but at most a minute: 60000 ms
    local window = retention < step and step or retention
    expires = current + retention + (window < 60000 and window or 60000)
    expiries[i] = expires
  end
  local front = rules == 1 and '<I6I6I6I6I6I7I7' or rules == 2 and '<I6I6I6I6I6I7I7I7' or '<I6I6I6I6I6I7I7I7I7'
  front = pack(front, since, due, others, expires, current, base, used + units, second, third)
  values[i], offsets[i] = front .. changed .. added, '6'
  return sub(front, 38)
end
