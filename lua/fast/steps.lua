-- The fast path's denials, new keys, settlements, and charges while any rule is due. Calendar rules are as fixed rules
-- here, with one step that ends with the period. These functions return nothing if the plain script has to decide.

local ENTRY, SIZE, WRAP = { [0] = '<I2', '<I7' }, { [0] = 2, 7 }, { [0] = 2 ^ 16, 2 ^ 53 } -- narrow and wide

-- The end of the current period of the calendar, whose boundaries begin at `at`, and the place behind them; or nothing
-- if the time may be in none. A boundary has 6 bytes.
local function read_period(arg, at)
  local count, i = string.byte(arg, at), 1
  local bounds = { unpack('<' .. rep('I6', count), arg, at + 1) }
  while i <= count and bounds[i] <= now do i = i + 1 end
  if i > 1 and i + 2 <= count then return bounds[i], at + 1 + count * 6 end
end

-- The rules of a policy. `lag`: how long before the end of a step units are released within it, below 0, or 0.
local function shape_of(policy)
  local rules, arg = policy.rules, policy.arg
  local labels_at, shape = 27 + rules * 7, { entries = 0, rest = 0, tail = '', nil, nil, nil } -- with room
  local periods_at = labels_at + rules * 16 + 2
  for k = 1, rules do
    local limit, step, retention, size = unpack('<I7', arg, 20 + k * 7), nil, nil, nil
    step, retention, size = unpack('<I6I6I4', arg, labels_at + k * 16 - 16)
    if step >= 2 ^ 44 then
      step, periods_at = read_period(arg, periods_at)
      if not step then return false end
      retention = 0
    end
    local lag = retention % step
    shape[k] = { limit = limit, step = step, retention = retention, places = size / 2, lag = lag > 0 and lag - step or 0 }
    shape.entries = shape.entries + size / 2
  end
  shape.rest = 32 + rules * 36 -- bytes beside the entries
  shape.tail = sub(arg, labels_at, labels_at + rules * 16 + 1)
  return shape
end

-- The whole value of KEYS[i], and whether entries are wide: 0 or 1.
local function read(policy, i)
  stored[i] = stored[i] or try('GET', KEYS[i])
  local value = stored[i]
  if #value < 64 then return end
  local wide = unpack('<I6', value) - policy.mark
  if not SIZE[wide] or #value ~= policy.shape.rest + policy.shape.entries * SIZE[wide] then return end
  return value, wide
end

-- Releases steps: returns the units that the section still uses, the total up to the end of the last step that is
-- released, and the number of that step. The totals of the section begin at `at`.
local function release(rule, value, at, wide, newest, used, base)
  local step, places, gone = rule.step, rule.places, now - rule.retention
  local number = newest / step
  gone = (gone - gone % step) / step
  if gone >= number then return 0, 0, gone end
  if gone < number - places then return used, base, gone end
  local total = unpack(ENTRY[wide], value, at + gone % places * SIZE[wide])
  return used - (total - base) % WRAP[wide], total, gone
end

-- Returns the time at which a rule that denies has released `over` units. The search tries the newest step first, as
-- mostly no earlier total is so high.
local function fits_at(rule, value, at, wide, newest, base, gone, over)
  local places, entry, size, wrap = rule.places, ENTRY[wide], SIZE[wide], WRAP[wide]
  local high = newest / rule.step
  local low = gone > high - places - 1 and gone or high - places - 1
  local middle = high - 1
  while middle > low do
    if (unpack(entry, value, at + middle % places * size) - base) % wrap < over then low = middle else high = middle end
    middle = (high + low) / 2
    middle = middle - middle % 1
  end
  return high * rule.step + rule.retention
end

-- Whether the units of a check fit, and the usage.
local function usage_of(policy, i, units, is_check)
  local value, wide = read(policy, i)
  if not value then return end
  local rules, usage, fits, newest, base = policy.rules, '', true, nil, nil
  local at = 44 + rules * 7
  newest, base = unpack('<I6I7', value, 31)
  for k = 1, rules do
    local rule, used, gone, when = policy.shape[k], unpack('<I7', value, 37 + k * 7), 0, 0
    if k > 1 then newest, base, at = unpack('<I6I7', value, at) end
    if newest + rule.lag > now then
      if newest ~= now - now % rule.step + rule.step then return end
    elseif rule.step > now and newest > 0 then
      return -- another period of the calendar
    else
      used, base, gone = release(rule, value, at, wide, newest, used, base)
      if used < 0 then return end
    end
    local over = used - rule.limit + units
    if over > 0 and is_check then
      fits = false
      if units <= rule.limit then when = fits_at(rule, value, at, wide, newest, base, gone, over) end
    end
    usage = usage .. pack('<I7I6I6', used, used > 0 and newest or 0, when)
    at = at + rule.places * SIZE[wide]
  end
  return fits, usage
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

-- Charges units, if they fit. Returns the used units of each rule, packed.
local function charge(policy, i, units, is_check)
  local value, wide = read(policy, i)
  if not value then return end
  local rules, size, wrap, changed, at = policy.rules, SIZE[wide], WRAP[wide], '', 44 + policy.rules * 7
  local totals, since, due, others, copied = { unpack(policy.counts, value, 44) }, 0, nil, 2 ^ 47, at
  local expires, newest, base, window = unpack('<I6I6I7', value, 25)
  local first_newest, first_base = newest, base
  window = nil
  for k = 1, rules do
    local rule, used = policy.shape[k], totals[k]
    local step, retention, places = rule.step, rule.retention, rule.places
    local current = now - now % step + step
    if k > 1 then newest, base, at = unpack('<I6I7', value, at) end
    if newest + rule.lag <= now then
      if step > now and newest > 0 then return end -- another period of the calendar
      local total, head, added, stop = (base - wrap + used) % wrap, '', '', at -- in this order always exact
      used, base = release(rule, value, at, wide, newest, used, base)
      if used < 0 or used == 0 and places > 0 and wide == 1 then return end
      if used == 0 and places > 0 then
        added, stop = rep('\0', places * 2), at + places * 2
      elseif places > 0 then
        added, stop = totals_of(value, at, places, size, newest / step, (current - newest) / step, pack(ENTRY[wide], total))
      end
      if k > 1 then head = pack('<I6I7', current, base) else first_base = base end
      changed, copied = changed .. sub(value, copied, at - #head - 1) .. head .. added, stop
    elseif newest ~= current then
      return
    end
    used = used + units
    if is_check and used > rule.limit or used >= wrap then return end
    if current - step > since then since = current - step end
    newest = current + rule.lag > now and current + rule.lag or current
    if k == 1 then due, first_newest = newest, current elseif newest < others then others = newest end
    if current + retention > expires then
      expires, window = current + retention, retention < step and step or retention
    end
    totals[k], at = used, at + places * size
  end
  if window then -- one window later, but at most a minute: 60000 ms
    expires = expires + (window < 60000 and window or 60000)
    expiries[i] = expires
  end
  local counts = pack(policy.counts, spread(totals, 1, rules))
  values[i] = pack('<I6I6I6I6I6I7', since, due, others, expires, first_newest, first_base) .. counts .. changed
  offsets[i] = '6'
  return counts
end

-- Charges units that fit to a new key. In a call, new keys mostly get the same value.
local function create(policy, i, units)
  local new, rules = policy.new, policy.rules
  if units >= 2 ^ 16 then return end
  if not new or new.units ~= units then
    local since, due, others, expires, window, bodies, first = 0, nil, 2 ^ 47, 0, nil, '', nil
    for k = 1, rules do
      local rule = policy.shape[k]
      local step, retention = rule.step, rule.retention
      local current = now - now % step + step
      if current - step > since then since = current - step end
      local next_due = current + rule.lag > now and current + rule.lag or current
      if k == 1 then due, first = next_due, current elseif next_due < others then others = next_due end
      if current + retention > expires then
        expires, window = current + retention, retention < step and step or retention
      end
      bodies = bodies .. (k > 1 and pack('<I6I7', current, 0) or '') .. rep('\0', rule.places * 2)
    end
    expires = expires + (window < 60000 and window or 60000)
    local counts = rep(pack('<I7', units), rules)
    local front = pack('<I6I6I6I6I6I6I7', policy.mark, since, due, others, expires, first, 0)
    new = { units = units, expires = expires, counts = counts, value = front .. counts .. bodies .. policy.shape.tail }
    policy.new = new
  end
  values[i], expiries[i] = new.value, new.expires
  return new.counts
end

-- Takes units from the newest steps, if no section is due and each step keeps some units.
local function take(policy, i, units)
  local value, wide = read(policy, i)
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
      local total = unpack(ENTRY[wide], value, at + (newest / rule.step - 1) % rule.places * SIZE[wide])
      before = (total - base) % WRAP[wide]
    end
    totals[k], at = totals[k] - units, at + rule.places * SIZE[wide]
    if totals[k] <= before then return end
  end
  values[i], offsets[i] = pack(policy.counts, spread(totals, 1, rules)), '43'
  return values[i]
end

-- Decides a check or settlement of KEYS[i], which surely denies if it `is_full`. Returns whether it fits, and the form and
-- the bytes of the usage.
return function(policy, i, is_new, units, action, is_denied, is_full)
  local is_check, fits, counts, usage = action < ADD, true, nil, nil
  if policy.shape == nil then policy.shape = shape_of(policy) end
  if not policy.shape then return end
  if action == TAKE then return true, policy.form, not is_new and take(policy, i, units) end
  if is_new then
    for k = 1, policy.rules do
      if is_check and units > policy.shape[k].limit then fits = false end
    end
    if units == 0 or is_denied or not fits then return fits, '\1', rep('\0', policy.rules * 19) end
    return true, policy.form, create(policy, i, units)
  end
  if units > 0 and not is_denied and not is_full then
    counts = charge(policy, i, units, is_check)
    if counts or not is_check then return true, policy.form, counts end
  end
  fits, usage = usage_of(policy, i, units, is_check)
  if fits and units > 0 and not is_denied then return end
  return fits, '\1', usage
end
