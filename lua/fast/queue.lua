-- The fast path's checks of one rule that has a queue, with narrow entries. `usage.lua` is the other half of this function.

-- Takes units from the queue of KEYS[i], or of a new key, if they fit, unless the check `is_denied`. Returns whether they
-- fit, the form of the reply, and the usage; or nothing if the plain script has to decide.
local function of_queue(policy, i, value, units, is_denied)
  if value == '' then value = pack('<I6', policy.mark) .. rep('\0', 63) end -- without entries
  local step, retention = unpack('<I6I6', policy.arg, 34)
  local count, mark, _, _, _, expires, newest, base, used = (#value - 69) / 8, unpack(policy.front, value)
  local start, gone, number = now - now % step, (now - retention - (now - retention) % step) / step, newest / step
  if mark ~= policy.mark or newest > start + step or count < 0 or count % 1 > 0 or #value > 65535 then return end
  local kept, total, when = count + 1, base + used, 0 -- `kept`: the first entry that is not released
  if gone >= number then
    used, base = 0, 0
  else
    kept = first_with(gone + 1, value, 44, 2 ^ 40, '<I6', 8, 2 ^ 53, 0, 0, kept)
    if kept > 1 then base = unpack('<I2', value, 42 + kept * 8) end
    used = (total - base) % 65536
  end
  local over = used - policy[4] + units
  if over > 0 or units == 0 or is_denied then
    if over > 0 then
      local place = first_with(over, value, 50, 2 ^ 40, '<I2', 8, 65536, base, kept - 1, count + 1)
      when = (place > count and number or unpack('<I6', value, 44 + place * 8)) * step + retention
    end
    return over <= 0, '\1', pack('<I7I6I6', used, used > 0 and newest or 0, when)
  end
  local counts, body, lag = pack('<I7', used + units), '\2' .. sub(value, 44 + kept * 8, -19), retention % step
  if used > 0 and newest <= start then body = body .. pack('<I6I2', number, total % 65536) end
  if used + units > 65535 then return end
  if start + step + retention > expires then
    expires = start + step + retention + (retention < 59000 and retention + 1000 or 60000)
  end
  lag = lag > 0 and start + lag > now and lag or step -- until units are released
  values[i] = pack('<I6I6I6I6I6I6I7', mark, start, start + lag, 2 ^ 47, expires, start + step, base) .. counts .. body
    .. sub(policy.arg, 34, 45) .. pack('<I4', #body) .. '\1\1'
  expiries[i] = expires
  return true, '\2', counts
end

return usage_of, deny, of_queue
