-- The fast path's checks of buckets.

-- Takes units from the buckets of KEYS[i] if they fit each, unless the check `is_denied`. Returns whether they fit, the
-- form of the reply, and the usage; or nothing if the plain script has to decide. Rust computes when units fit.
-- In `front`, [rules * 2 + 3] is the expiry. The used units have 7 bytes for each rule, behind 1 byte for their count.
return function(policy, i, front, units, is_denied)
  local rules, labels, fits, usage = policy.rules, policy.labels, true, ''
  for k = 1, rules do
    local period, refill, missing = labels[k * 2 - 1], labels[k * 2], front[k + 1]
    local gained = (now - front[k + rules + 1]) * refill
    if gained < 0 then return end
    missing = gained < missing and missing - gained or 0
    fits = fits and units <= (policy.limits[k + 1] * period - missing) / period
    front[k + 1], front[k + rules + 1] = missing, now
  end
  if fits and units > 0 and not is_denied then
    for k = 1, rules do
      front[k + 1] = front[k + 1] + units * labels[k * 2 - 1]
      if front[k + 1] > (front[rules * 2 + 3] - now) * labels[k * 2] then return end -- not full by the expiry
    end
    values[i] = pack(policy.front_format, spread(front))
    return true, '\2', string.sub(values[i], 1, 1 + rules * 7)
  end
  for k = 1, rules do usage = usage .. pack('<I7I6I6', front[k + 1], now, 0) end
  return fits, '\1', usage
end
