-- The fast path's new keys, settlements, and charges while any rule is due. Calendar rules are as fixed rules here, with
-- one step that ends with the period. These functions return nothing if the units do not fit, or if the plain script has
-- to decide.

-- The rules of a policy. `lag`: how long before the end of a step units are released within it, below 0, or 0.
local function shape_of(policy)
  local rules, arg = policy.rules, policy.arg
  local labels_at, entries, shape = 27 + rules * 7, 0, { entries = 0, rest = 0, tail = '', nil, nil, nil } -- with room
  local periods_at = labels_at + rules * 16 + 2
  for k = 1, rules do
    local limit = rules < 4 and policy[k + 3] or unpack('<I7', arg, 20 + k * 7)
    local step, retention, size = unpack('<I6I6I4', arg, labels_at + k * 16 - 16)
    if step >= 2 ^ 44 then
      step, periods_at = read_period(arg, periods_at, now)
      if not step then return false end
      retention = 0
    end
    local lag = retention % step
    shape[k] = { limit = limit, step = step, retention = retention, places = size / 2, lag = lag > 0 and lag - step or 0 }
    entries = entries + size / 2
  end
  shape.entries, shape.rest = entries, 32 + rules * 36 -- bytes beside the entries
  shape.tail = sub(arg, labels_at, labels_at + rules * 16 + 1)
  return shape
end

-- The whole value of KEYS[i]; and of its entries, narrow or wide, the format and the size.
local function read(policy, i)
  stored[i] = stored[i] or try('GET', KEYS[i])
  local value, size = stored[i], nil
  if #value < 64 then return end
  size = 2 + (unpack('<I6', value) - policy.mark) * 5
  if size ~= 2 and size ~= 7 or #value ~= policy.shape.rest + policy.shape.entries * size then return end
  return value, size == 2 and '<I2' or '<I7', size
end

-- Releases steps: returns the units that the section still uses, and the total up to the end of the last step that is
-- released. The totals of the section begin at `at`.
local function release(rule, value, at, entry, size, wrap, newest, used, base)
  local step, places, gone = rule.step, rule.places, now - rule.retention
  local number = newest / step
  gone = (gone - gone % step) / step
  if gone >= number then return 0, 0 end
  if gone < number - places then return used, base end
  local total = unpack(entry, value, at + gone % places * size)
  return used - (total - base) % wrap, total
end

-- The totals of a section from the first place on, with an entry for each step since the newest, and where the unchanged
-- ones begin.
local function totals_of(value, at, places, size, number, gap, entry)
  local from, stop = at + number % places * size, at + places * size
  local behind = from + gap * size - stop
  if behind <= 0 then return sub(value, at, from - 1) .. rep(entry, gap), from + gap * size end
  -- At the ring's end, entries go on at the beginning.
  return rep(entry, behind / size) .. sub(value, at + behind, from - 1) .. rep(entry, (stop - from) / size), stop
end

-- Charges units, if they fit. Returns the used units of each rule, packed. In a call, new keys mostly get the same value.
local function charge(policy, i, is_new, units, is_check)
  local new, value, entry, size = is_new and policy.new, nil, '<I2', 2
  if new and new.units == units then
    values[i], expiries[i] = new.value, new.expires
    return new.counts
  end
  if is_new then value = rep('\0', 43 + policy.rules * 7) else value, entry, size = read(policy, i) end -- a front, of zeros
  if not value then return end
  local rules, shape, wrap, changed, at = policy.rules, policy.shape, size == 2 and 2 ^ 16 or 2 ^ 53, '', 44 + policy.rules * 7
  local totals, since, due, others, copied = { unpack(policy.counts, value, 44) }, 0, nil, 2 ^ 47, at
  local expires, newest, base, window = unpack('<I6I6I7', value, 25)
  local newest_1, base_1 = newest, base
  window = nil
  for k = 1, rules do
    local rule, used = shape[k], totals[k]
    local step, retention, places = rule.step, rule.retention, rule.places
    local current = now - now % step + step
    if k > 1 then newest, base, at = unpack('<I6I7', value, is_new and 31 or at) end
    if newest + rule.lag <= now then
      if step > now and newest > 0 then return end -- another period of the calendar
      local total, head, added, stop = (base - wrap + used) % wrap, '', '', at -- in this order always exact
      if not is_new then used, base = release(rule, value, at, entry, size, wrap, newest, used, base) end
      if used < 0 or used == 0 and places > 0 and size == 7 then return end
      if used == 0 and places > 0 then
        added, stop = rep('\0\0', places), at + places * 2
      elseif places > 0 then
        added, stop = totals_of(value, at, places, size, newest / step, (current - newest) / step, pack(entry, total))
      end
      if k > 1 then head = pack('<I6I7', current, base) else base_1 = base end
      changed, copied = changed .. sub(value, copied, at - #head - 1) .. head .. added, stop
    elseif newest ~= current then
      return
    end
    used = used + units
    if is_check and used > rule.limit or used >= wrap then return end
    if current - step > since then since = current - step end
    newest = current + rule.lag > now and current + rule.lag or current
    if k == 1 then due, newest_1 = newest, current elseif newest < others then others = newest end
    if current + retention > expires then
      expires, window = current + retention, retention < step and step or retention
    end
    totals[k], at = used, at + places * size
  end
  if window then -- one window and a second later, but at most a minute: 60000 ms
    expires = expires + (window < 59000 and window + 1000 or 60000)
    expiries[i] = expires
  end
  local counts = pack(policy.counts, spread(totals, 1, rules))
  local mark, tail = is_new and pack('<I6', policy.mark) or '', is_new and shape.tail or ''
  values[i], offsets[i] = mark .. pack('<I6I6I6I6I6I7', since, due, others, expires, newest_1, base_1) .. counts .. changed .. tail, '6'
  if is_new then
    offsets[i] = nil
    policy.new = is_check and { units = units, expires = expires, counts = counts, value = values[i] } or nil
  end
  return counts
end

-- Takes units from the newest steps, if no section is due and each step keeps some units.
local function take(policy, i, units)
  local value, entry, size = read(policy, i)
  if not value then return end
  local rules, arg, totals, newest, base = policy.rules, ARGV[i], { unpack(policy.counts, value, 44) }, nil, nil
  local at = 44 + rules * 7
  newest, base = unpack('<I6I7', value, 31)
  for k = 1, rules do
    local rule, before = policy.shape[k], 0
    if k > 1 then newest, base, at = unpack('<I6I7', value, at) end
    if newest + rule.lag <= now or newest ~= now - now % rule.step + rule.step then return end
    if newest ~= unpack('<I6', arg, #arg - (rules - k) * 6 - 5) then return end -- not the step that was charged
    if rule.places > 0 then
      local total = unpack(entry, value, at + (newest / rule.step - 1) % rule.places * size)
      before = (total - base) % (size == 2 and 2 ^ 16 or 2 ^ 53)
    end
    totals[k], at = totals[k] - units, at + rule.places * size
    if totals[k] <= before then return end
  end
  values[i], offsets[i] = pack(policy.counts, spread(totals, 1, rules)), '43'
  return values[i]
end

-- Charges or takes the units of a check or settlement of KEYS[i]. Returns the used units of each rule, packed.
return function(policy, i, is_new, units, action)
  if policy.shape == nil then policy.shape = shape_of(policy) end
  if not policy.shape then return end
  if action == TAKE then return not is_new and take(policy, i, units) or nil end
  return charge(policy, i, is_new, units, action < ADD)
end
