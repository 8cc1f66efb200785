-- The fast path's checks of buckets. In the front, `newest` is the time of `used`, the missing units * ms.

-- Reads the formats, and the period and the refill of each rule, which all checks of a policy need.
local function read_rules(policy)
  local rules, all = policy.rules, { format = '', front = '', nil, nil, nil, nil, nil, nil }
  all.front = '<I6I6I6I6I6I6I7' .. rep('I7', rules)
  all.format = all.front .. rep('I6I7', rules - 1)
  for k = 1, rules do
    local period, refill = unpack('<I6I6', policy.arg, 11 + rules * 7 + k * 16)
    all[k * 2 - 1], all[k * 2] = period % 2 ^ 44, refill
  end
  return all
end

-- Takes units from the buckets of KEYS[i], or of a new key, if they fit each, unless the check `is_denied`. Returns
-- whether they fit, the form of the reply, and the usage; or nothing if the plain script has to decide. Rust computes
-- when units fit.
return function(policy, i, value, units, is_denied)
  policy.shape = policy.shape or read_rules(policy)
  local rules, arg, shape, fits, last, window = policy.rules, policy.arg, policy.shape, true, 0, nil
  if value ~= '' and #value < 30 + rules * 20 then return end
  local front = value == '' and { policy.mark, 0, 0, 0, 0, 0, 0 } or { unpack(shape.format, value) }
  local usage = ''
  for k = 1, rules do -- front[7 + k]: the missing units * ms
    local period, refill, limit = shape[k * 2 - 1], shape[k * 2], rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)
    local gained, missing = (now - (front[k == 1 and 6 or rules + 4 + k * 2] or 0)) * refill, front[k + 7] or 0
    if gained < 0 then return end
    missing = gained < missing and missing - gained or 0
    fits, usage = fits and units <= (limit * period - missing) / period, usage .. pack('<I7I6I6', missing, now, 0)
    missing = missing + units * period
    local full, to_fill = now + (missing - missing % refill) / refill + (missing % refill > 0 and 1 or 0), limit * period / refill
    if full > last then last = full end
    if full > front[5] then front[5], window = full, to_fill - to_fill % 1 end
    front[k + 7] = missing
  end
  if not fits or units == 0 or is_denied then return fits, '\1', usage end
  if last >= 2 ^ 47 or front[5] > last + 60000 and not window then return end -- too late, or from a wrong clock
  if window then -- one full refill and a second later, but at most a minute: 60000 ms
    front[5] = front[5] + (window < 59000 and window + 1000 or 60000)
    expiries[i] = front[5]
  end
  front[1], front[2], front[3], front[4], front[6], front[7] = policy.mark, now, 0, rules > 1 and 0 or 2 ^ 47, now, 0
  values[i] = pack(shape.front, spread(front, 1, rules + 7)) .. rep(pack('<I6I7', now, 0), rules - 1)
  local counts = sub(values[i], 44, 43 + rules * 7)
  if value == '' then
    values[i] = values[i] .. sub(arg, 27 + rules * 7, 28 + rules * 23)
  else
    offsets[i] = '0'
  end
  return true, '\2', counts
end
