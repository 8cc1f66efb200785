-- Decides checks and settles them: all charges of a check or none, each under every rule of its policy, in one atomic step.
-- README.md beside this file draws the stored value and explains the words.
--
-- KEYS[i]      the key of charge i; the charges of one check follow one another
-- ARGV[i]      what to do with KEYS[i]:
--                I1 action: 0 begins a check, 1 belongs to the check before it, 2 adds and 3 takes units in a settlement
--                I7 units: the cost of the charge, or the difference of the settlement
--                I1 how many rules follow
--                I7 limit of each; in a settlement, the end of the charged step
--                I6 step, I6 hold of each: the spans, as they stand in the value
-- ARGV[#KEYS + 1]  the time in ms, where it is not the server's clock that counts (tests)
-- Reply        one string: I6 the time; then for each key
--                I1 0 if its check is refused, 1 or 2 if not
--                after 0 and 1, for each: I7 used; I6 the end of its newest step, 0 for that of the time; I6 when the cost
--                fits, 0 if it does already or never will
--                after 2: I1 how many rules the value has; I7 used of each, whose newest step is that of the time
--
-- Writes nothing when a check is refused or costs nothing. All numbers are whole, all times are in ms.

local pack, unpack, spread, sub, call = struct.pack, struct.unpack, table.unpack or unpack, string.sub, redis.call

local now, expires, origin = ARGV[#KEYS + 1], 'PXAT', 0
if now then
  now = tonumber(now)
  expires, origin = 'PX', now - 86400000 -- a day more: a clock that is set by hand must not meet real expiry
else
  local time = call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- a whole number is added: the sum is exact
end

-- These functions take all they need as arguments: a closure over it costs as much as a look at the value.

-- How many of the first entries are at least `age` steps older than `newest`, or hold less than `sum` in all; the total of
-- the last of them; and the step of the one that follows (nil behind the end). Asks the last first, as a silence releases all,
-- and gallops from the first, as the answer is mostly small.
local function leading(value, at, count, entry, size, wrap, newest, age, base, sum)
  local unpack = struct.unpack
  local low, high, probe, last, following = 0, count - count % 1 + 1, count - count % 1, nil, nil
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    local step, total = unpack(entry, value, at + (probe - 1) * size)
    local leads
    if age then leads = (newest - step) % wrap >= age else leads = (total - base) % wrap < sum end
    if leads then
      low, last, probe = probe, total, probe * 2
    else
      high, following, probe = probe, step, following and high or 1
    end
  end
  return low, last, following
end

-- What is needed when sections are not as the caller expects them, when a clock steps back, when totals outgrow their entries, and
-- when a check is settled.
local function seldom(now, leading)
  local pack, unpack, sub, made = struct.pack, struct.unpack, string.sub, {}
  local MOST = 9007199254740991 -- 2^53 - 1
  local HEAD = '<I6I6I7I4I4I1' -- newest, first, base, length and room of the queue, width
  local ENTRY = { [0] = '<I2I2', '<I2I2', '<I4I4', '<I7I7' }
  local SIZE, WRAP = { [0] = 4, 4, 8, 14 }, { [0] = 65536, 65536, 4294967296, MOST + 1 }

  -- A queue written anew, in wider entries if need be, with the step that ends it; its width. Totals start from 0.
  function made.rewrite(queue, width, number, base, used)
    local to = width
    while used >= WRAP[to] do to = to + 1 end
    local entries = {}
    for at = 1, #queue, SIZE[width] do
      local step, total = unpack(ENTRY[width], queue, at)
      step = number - (number - step) % WRAP[width]
      entries[#entries + 1] = pack(ENTRY[to], step % WRAP[to], (total - base) % WRAP[width])
    end
    entries[#entries + 1] = pack(ENTRY[to], number % WRAP[to], used)
    return table.concat(entries), to
  end

  -- The end of the last step that is believed: one further ahead was charged while the clock was wrong.
  local function believed(step, hold)
    return now + step + step + math.max(step, hold)
  end

  -- Takes out the steps that are not believed.
  local function trim(section)
    local last, step, queue = believed(section.step, section.hold), section.step, section.queue
    if section.used == 0 or section.newest <= last then return end
    local entry, size, wrap = ENTRY[section.width], SIZE[section.width], WRAP[section.width]
    local number, age = section.newest / step, (section.newest - last) / step
    local left, total = leading(queue, 1, #queue / size, entry, size, wrap, number, age)
    if left == 0 then
      section.used = 0
    else
      local at = (left - 1) * size
      section.newest = section.newest - (number - unpack(entry, queue, at + 1)) % wrap * step
      section.used, section.queue = (total - section.base) % wrap, sub(queue, 1, at)
    end
  end

  local function parse(value)
    local sections, count = {}, string.byte(value)
    assert((count or 0) > 0, 'a value of no sections')
    local used = { unpack('<I1' .. string.rep('I7', count), value) }
    local at, label = 14 + count * 14, #value - count * 12
    for k = 1, count do
      local section = { used = used[k + 1], span = sub(value, label + k * 12 - 11, label + k * 12) }
      local length
      section.step, section.hold = unpack('<I6I6', section.span)
      section.newest, section.first, section.base, length, section.room, section.width = unpack(HEAD, value, at)
      section.queue = sub(value, at + 28, at + 27 + length)
      sections[k], at = section, at + 28 + section.room
    end
    assert(at == label + 1, 'a value of another length')
    return sections
  end

  -- The caller's sections in its order, empty where they are new or nothing in them counts, and without steps that are not
  -- believed; then those of others that still count.
  local function arrange(value, spans)
    local stored, found, sections = value and parse(value) or {}, {}, {}
    for _, section in ipairs(stored) do found[section.span] = section end
    for at = 1, #spans, 12 do
      local span = sub(spans, at, at + 11)
      local own = found[span]
      found[span] = nil
      if own then trim(own) end
      if not own or own.used == 0 or own.newest + own.hold <= now then
        own = { used = 0, span = span, newest = 0, first = 0, base = 0, queue = '', room = 0, width = 0 }
        own.step, own.hold = unpack('<I6I6', span)
      end
      sections[#sections + 1] = own
    end
    for _, other in ipairs(stored) do
      if found[other.span] and other.used > 0 and other.newest + other.hold > now and #sections < 255 then
        sections[#sections + 1] = other
      end
    end
    return sections
  end

  -- A value of these sections; when it expires, 0 if nothing counts.
  local function compose(sections)
    local used, dues, bodies, labels, since, till = {}, {}, {}, {}, 0, 0
    for k, section in ipairs(sections) do
      local due, length = 0, #section.queue
      if section.used > 0 then
        local start, release = section.newest - section.step, section.newest + section.hold
        since, till = math.max(since, start), math.max(till, release)
        if start <= now then due = math.min(section.newest, section.first + section.hold) end -- else time stands still
      end
      local room = math.max(section.room, length)
      used[k], dues[k], labels[k] = pack('<I7', section.used), pack('<I7', due), section.span
      bodies[k] = pack(HEAD, section.newest, section.first, section.base, length, room, section.width)
        .. section.queue .. string.rep('\0', room - length)
    end
    local front = pack('<I1', #sections) .. table.concat(used) .. pack('<I6I6', since, till) .. table.concat(dues)
    return front .. table.concat(bodies) .. table.concat(labels), till
  end

  -- A value as its caller expects it.
  function made.conform(value, spans)
    return (compose(arrange(value, spans)))
  end

  -- Releases, and adds units to the step that ends at `stop` or takes them, where it still counts; whether units were.
  local function settle(section, stop, units)
    local step, hold, width, newest = section.step, section.hold, section.width, section.newest
    local time, ends, counts, before, open, used = now, {}, {}, section.base, section.used, 0
    if open > 0 and newest - step > now then time = newest - step end
    if stop == newest and section.first + hold > time then -- as mostly: nothing is released, the queue may stay
      local last = before
      if section.queue ~= '' then last = select(2, unpack(ENTRY[width], section.queue, #section.queue - SIZE[width] + 1)) end
      if (last - before) % WRAP[width] < open + units then
        units = math.min(units, MOST - open)
        section.used = open + units
        return units ~= 0
      end
    end
    for at = 1, #section.queue, SIZE[width] do
      local number, sum = unpack(ENTRY[width], section.queue, at)
      local stopped, count = newest - (newest / step - number) % WRAP[width] * step, (sum - before) % WRAP[width]
      before, open = sum, open - count
      if stopped + hold > time then ends[#ends + 1], counts[#counts + 1], used = stopped, count, used + count end
    end
    if open > 0 then ends[#ends + 1], counts[#counts + 1], used = newest, open, used + open end
    local place = #ends + 1
    while place > 1 and ends[place - 1] >= stop do place = place - 1 end
    if stop + hold <= time or stop > believed(step, hold) then
      units = 0
    else
      units = math.max(math.min(units, MOST - used), ends[place] == stop and -counts[place] or 0)
    end
    if units ~= 0 and ends[place] ~= stop then
      table.insert(ends, place, stop)
      table.insert(counts, place, units)
    elseif units ~= 0 then
      counts[place] = counts[place] + units
      if counts[place] == 0 then
        table.remove(ends, place)
        table.remove(counts, place)
      end
    end
    section.used, section.newest, section.first = used + units, ends[#ends] or newest, ends[1] or newest
    width = hold / step < 4096 and 1 or 2
    while math.max(section.used, (section.newest - section.first) / step, hold / step + 5) >= WRAP[width] do width = width + 1 end
    local entries, sum = {}, 0
    for entry = 1, #ends - 1 do
      sum = sum + counts[entry]
      entries[entry] = pack(ENTRY[width], ends[entry] / step % WRAP[width], sum)
    end
    section.queue, section.width, section.base = table.concat(entries), width, 0
    return units ~= 0
  end

  -- A value as its caller expects it, with units added to the step of each rule that ends at its stop, or taken from it: what is
  -- to be stored (nil if it may stay as it is, '' if nothing counts any more), when it expires, and what to reply of each rule.
  function made.settle(value, spans, stops, units)
    local sections, changes, told = arrange(value, spans), false, ''
    for k = 1, #spans / 12 do
      if settle(sections[k], stops[k + 1], units) then changes = true end
      told = told .. pack('<I7I6I6', sections[k].used, sections[k].newest, 0)
    end
    if not changes then return nil, nil, told end
    local settled, till = compose(sections)
    return till > 0 and settled or '', till, told
  end

  return made
end

-- Looks at a value: whether the cost fits, and what to reply of each rule. No limits: only what counts is asked for.
local function look(now, pack, unpack, leading, value, fields, rules, spans, units, limits)
  local fits, told, at = true, '', 14 + fields[1] * 14
  for k = 1, rules do
    local used, fits_at, limit = fields[k + 1], 0, limits and limits[k + 1]
    local step, hold = unpack('<I6I6', spans, k * 12 - 11)
    local newest, first = unpack('<I6I6', value, at)
    local time = now
    if newest - step > now then time = newest - step end -- the clock stepped back: time stands still until it has caught up
    if used == 0 or newest + hold <= time then
      used, newest = 0, 0
      if limit and units > limit then fits = false end
    else
      local sum = limit and used - limit + units or 0 -- what has to be released; in this order, no number is too large
      if first + hold <= time or sum > 1 then
        local base, length, _, width = unpack('<I7I4I4I1', value, at + 12)
        local queue, entry, size, wrap, number = at + 28, '<I2I2', 4, 65536, newest / step
        if width == 2 then
          entry, size, wrap = '<I4I4', 8, 4294967296
        elseif width == 3 then
          entry, size, wrap = '<I7I7', 14, 9007199254740992
        end
        if first + hold <= time then
          local gone, total, following = leading(value, queue, length / size, entry, size, wrap, number, (newest + hold - time) / step)
          local released = (total - base) % wrap
          used, sum, base, queue, length = used - released, sum - released, total, queue + gone * size, length - gone * size
          first = following and newest - (number - following) % wrap * step or newest
        end
        if sum > 1 and units <= limit then
          local _, _, following = leading(value, queue, length / size, entry, size, wrap, number, nil, base, sum)
          fits_at = newest + hold - (following and (number - following) % wrap * step or 0)
        end
      end
      if sum == 1 then fits_at = first + hold end -- the first step that goes makes room for one
      if sum > 0 then fits = false end
    end
    told = told .. pack('<I7I6I6', used, newest, fits_at)
    if k < rules then at = at + 28 + unpack('<I4', value, at + 23) end
  end
  return fits, told
end

-- A value in which nothing counts but units that are charged now, and when it expires.
local function create(now, pack, unpack, spread, format, rules, spans, units)
  local fields, since, till, heads = { rules }, 0, 0, ''
  for k = 1, rules do
    local step, hold = unpack('<I6I6', spans, k * 12 - 11)
    local start = now - now % step
    local newest = start + step
    if start > since then since = start end
    if newest + hold > till then till = newest + hold end
    fields[k + 1], fields[rules + 3 + k] = units, newest
    heads = heads .. pack('<I6I6', newest, newest) .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- base, length, room, width
  end
  fields[rules + 2], fields[rules + 3] = since, till
  return pack(format, spread(fields, 1, rules * 2 + 3)) .. heads .. spans, till
end

-- Charges a value; brings sections up to date where that is due. Returns what is to be stored and when it expires: nil if only
-- the start is to be stored, 0 if it expires when it did.
local function charge(now, pack, unpack, sub, spread, leading, seldom, value, fields, format, rules, spans, units, whole)
  local sections = fields[1]
  local since, till, dues = fields[sections + 2], fields[sections + 3], sections + 3
  local changed, was = '', whole and 0 or till -- sections, as they are to follow the front
  local at, reached = 14 + sections * 14, 1 -- the section that begins there
  local copied = at -- what lies before it is in `changed`, or older than that
  for k = 1, rules do
    local used = fields[k + 1]
    if now >= fields[dues + k] then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local step, hold = unpack('<I6I6', spans, k * 12 - 11)
      local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
      local queue = at + 28
      local live, behind, behind_room, added = queue, queue + length, queue + room, '' -- of the queue, what is from `live` on still counts
      local time = now
      if newest - step > now then time = newest - step end -- the clock stepped back
      if used == 0 or newest + hold <= time then
        newest = now - now % step + step
        first, base, used, live, width = newest, 0, 0, behind, 0
      else
        if width == 0 then width = hold / step < 4096 and 1 or hold / step < 4294967290 and 2 or 3 end
        local entry, size, wrap, number = '<I2I2', 4, 65536, newest / step
        if width == 2 then
          entry, size, wrap = '<I4I4', 8, 4294967296
        elseif width == 3 then
          entry, size, wrap = '<I7I7', 14, 9007199254740992
        end
        if first + hold <= time then
          local age = (newest + hold - time) / step
          local gone, total, following = 1, nil, nil
          if length > size then total, following = unpack(entry, value, queue + size / 2) end
          if not following or (number - following) % wrap >= age then
            gone, total, following = leading(value, queue, length / size, entry, size, wrap, number, age)
          end
          used, base, live = used - (total - base) % wrap, total, queue + gone * size
          first = following and newest - (number - following) % wrap * step or newest
        end
        if now >= newest then
          if used >= wrap or base + used > 9007199254740991 then
            added, width = seldom(now, leading).rewrite(sub(value, live, behind - 1), width, number, base, used)
            base, live = 0, behind
          else
            added = pack(entry, number % wrap, (base + used) % wrap)
          end
          newest = now - now % step + step
        end
      end

      length = behind - live + #added
      if length > room then
        room = room > 16 and room * 2 or 32
        if length > room then room = length end
      elseif room > 64 and length * 4 < room then
        room = length > 16 and length * 2 or 32
      end
      changed = changed .. (copied < at and sub(value, copied, at - 1) or '')
        .. pack('<I6I6I7I4I4I1', newest, first, base, length, room, width) .. sub(value, live, behind - 1) .. added
      copied = queue + length
      if room ~= behind_room - queue then
        if behind > #value + 1 then error('a queue is longer than its value') end
        changed, copied, whole = changed .. string.rep('\0', room - length), behind_room, true
      end
      if newest - step > since then since = newest - step end
      if newest + hold > till then till = newest + hold end
      fields[dues + k] = first + hold < newest and first + hold or newest
      at, reached = behind_room, k + 1
    end
    fields[k + 1] = used + units
  end
  fields[sections + 2], fields[sections + 3] = since, till
  if whole or till > was then
    return pack(format, spread(fields)) .. changed .. sub(value, copied), till > was and till or 0
  end
  return pack(format, spread(fields)) .. changed
end

-- Charge by charge. A check is tried as if it fitted: what it would write is put aside until its last charge has passed.
-- If one does not, the check is looked at again from its first charge, and the reply says when the cost fits.
local KEYS, ARGV = KEYS, ARGV
local reply, writes, i, begin, looks = pack('<I6', now), nil, 1, 1, false
local before = reply -- what the reply to this check follows, should it be looked at again
local replies -- those to the checks before it: they are joined at the end, as what is joined is hashed each time
local known -- the values of a check with several charges, for when it is looked at again
local args, action, units, rules, limits, spans, counts_format, front_format -- what to do with KEYS[i]
while KEYS[i] do
  if ARGV[i] ~= args then -- concurrent requests mostly ask the same of different keys
    args = ARGV[i]
    action, units, rules = unpack('<I1I7I1', args)
    if rules == 3 then
      counts_format, front_format = '<I1I7I7I7', '<I1I7I7I7I6I6I7I7I7'
    else
      local each = string.rep('I7', rules)
      counts_format = '<I1' .. each
      front_format = counts_format .. 'I6I6' .. each
    end
    limits = { unpack(counts_format, args, 9) }
    spans = sub(args, 10 + rules * 7)
  end

  local value, fields, nothing, whole = known and known[i] or call('GET', KEYS[i]), nil, false, false
  if value and sub(value, -#spans) == spans then
    fields = { unpack(front_format, value) }
    if fields[1] ~= rules or fields[rules + 2] > now then
      fields = nil
    else
      nothing = fields[rules + 3] <= now
    end
  end
  nothing = not value or nothing
  local fits, flag, answer, written, till, again = true, nil, nil, nil, nil, nil
  if action > 1 then
    written, till, answer = seldom(now, leading).settle(value, spans, limits, action == 2 and units or -units)
    flag = '\1'
  elseif nothing then
    for k = 2, rules + 1 do
      if units > limits[k] then fits = false end
    end
    if not fits and not looks then looks, again = true, i > begin end
    if looks or units == 0 then
      flag, answer = looks and '\0' or '\1', string.rep('\0', rules * 19)
    else
      written, till = create(now, pack, unpack, spread, front_format, rules, spans, units)
      flag, answer = '\2', sub(written, 1, 1 + rules * 7)
    end
  else
    local current, format = fields ~= nil, front_format
    if not fields then
      value, whole = seldom(now, leading).conform(value, spans), true
      local each = string.rep('I7', string.byte(value))
      format = '<I1' .. each .. 'I6I6' .. each
      fields = { unpack(format, value) }
    end
    local dues = fields[1] + 2
    for k = 2, rules + 1 do
      if fields[k] + units > limits[k] then fits = false end
      if fields[dues + k] <= now then current = false end
    end
    if looks or not fits or units == 0 then
      fits, answer = look(now, pack, unpack, leading, value, fields, rules, spans, units, limits)
      if not fits and not looks then looks, again = true, i > begin end
      flag = looks and '\0' or '\1'
    end
    if not looks and units > 0 then
      if current then
        for k = 2, rules + 1 do fields[k] = fields[k] + units end
        written = pack(counts_format, spread(fields, 1, rules + 1))
        flag, answer = '\2', written
      else
        written, till = charge(now, pack, unpack, sub, spread, leading, seldom, value, fields, format, rules, spans, units, whole)
        if fields[fields[1] + 2] > now then -- the clock stepped back: steps are not those of the time
          flag, fits, answer = '\1', look(now, pack, unpack, leading, written, fields, rules, spans)
        else
          flag, answer = '\2', sub(written, 1, 1 + rules * 7)
        end
      end
    end
  end

  if again then
    reply, writes, i = before, nil, begin
  else
    local following = KEYS[i + 1] and ARGV[i + 1]
    local last = not following or (following == args and action or string.byte(following)) ~= 1
    if not last then
      if written then writes = { KEYS[i], written, till, writes } end
      known = known or {}
      known[i] = value
    end
    reply, i = reply .. flag .. answer, i + 1
    if last then
      local key = written and KEYS[i - 1]
      if not key and writes then key, written, till, writes = writes[1], writes[2], writes[3], writes[4] end
      while key do
        if written == '' then
          call('DEL', key)
        elseif not till then
          call('SETRANGE', key, '0', written)
        elseif till > 0 then
          call('SET', key, written, expires, till - origin)
        else
          call('SET', key, written, 'KEEPTTL')
        end
        key = nil
        if writes then key, written, till, writes = writes[1], writes[2], writes[3], writes[4] end
      end
      known, looks, begin = nil, false, i
      if following then
        replies = replies or {}
        replies[#replies + 1] = reply
        before, reply = '', ''
      end
    end
  end
end
return replies and table.concat(replies) .. reply or reply
