-- The fast path's checks of buckets. In the front, `newest` is the time of `used`, the missing units * ms.

-- Takes units from the buckets of KEYS[i], or of a new key, if they fit each, unless the check `is_denied`. Returns
-- whether they fit, the form of the reply, and the usage; or nothing if the plain script has to decide. Rust computes
-- when units fit.
return function(policy, i, value, units, is_denied)
  local rules, arg, fits, usage, window = policy.rules, policy.arg, true, '', nil
  local format = '<I6I6I6I6I6I6I7' .. rep('I7', rules) .. rep('I6I7', rules - 1)
  local labels_at, periods, refills, missing = 27 + rules * 7, {}, {}, {}
  if value ~= '' and #value < 30 + rules * 20 then return end
  local front = value == '' and { policy.mark, 0, 0, 0, 0, 0, 0 } or { unpack(format, value) }
  for k = 1, rules do
    local period, refill = unpack('<I6I6', arg, labels_at + k * 16 - 16)
    local limit, time = unpack('<I7', arg, 20 + k * 7), front[k == 1 and 6 or rules + 4 + k * 2] or 0
    period = period % 2 ^ 44
    local lacking, gained = front[k + 7] or 0, (now - time) * refill
    if gained < 0 then return end
    lacking = gained < lacking and lacking - gained or 0
    fits = fits and units <= (limit * period - lacking) / period
    periods[k], refills[k], missing[k] = period, refill, lacking
    usage = usage .. pack('<I7I6I6', lacking, now, 0)
  end
  if not fits or units == 0 or is_denied then return fits, '\1', usage end
  local last = 0
  for k = 1, rules do
    local refill, to_fill = refills[k], unpack('<I7', arg, 20 + k * 7) * periods[k] / refills[k]
    missing[k] = missing[k] + units * periods[k]
    local full = now + (missing[k] - missing[k] % refill) / refill + (missing[k] % refill > 0 and 1 or 0)
    if full >= 2 ^ 47 then return end
    if full > last then last = full end
    if full > front[5] then front[5], window = full, to_fill - to_fill % 1 end
  end
  if front[5] > last + 60000 and not window then return end -- from a wrong clock
  if window then -- one full refill later, but at most a minute: 60000 ms
    front[5] = front[5] + (window < 60000 and window or 60000)
    expiries[i] = front[5]
  end
  local counts = pack(policy.counts, spread(missing))
  values[i] = pack('<I6I6I6I6I6I6I7', policy.mark, now, 0, rules > 1 and 0 or 2 ^ 47, front[5], now, 0) .. counts
    .. rep(pack('<I6I7', now, 0), rules - 1)
  if value == '' then values[i] = values[i] .. sub(arg, labels_at, labels_at + rules * 16 + 1) else offsets[i] = '0' end
  return true, policy.form, counts
end
