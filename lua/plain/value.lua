-- The value of a key: a section for each rule.

-- The string that KEYS[i] holds; false if there is none.
local function get(i)
  if stored[i] == nil then stored[i] = redis.pcall('GET', KEYS[i]) end -- else read by the fast path
  local value = stored[i]
  if type(value) == 'table' then error({ problem = value.err }) end
  return value
end

-- The sections of a value, by label and in order; and when the key expires. The first head stands in the front, each
-- other before the body.
local function parse(value)
  local sections, count = {}, byte(value, -2) or 0
  local labels_at = #value - 1 - count * (LABEL_SIZE + BEHIND_LABEL)
  local _, _, _, _, expires, at = unpack(FRONT, value)
  local newest, base, used_at, used, size
  newest, base, used_at = unpack(HEAD, value, at)
  at = used_at + count * 7
  for k = 1, count do
    local label_at = labels_at + (k - 1) * (LABEL_SIZE + BEHIND_LABEL)
    if k > 1 then newest, base, at = unpack(HEAD, value, at) end
    used, size = unpack(COUNT, value, used_at + (k - 1) * 7), unpack(BODY_SIZE, value, label_at + LABEL_SIZE)
    local label, body = sub(value, label_at, label_at + LABEL_SIZE - 1), sub(value, at, at + size - 1)
    local section = { label = label, used = used, newest = newest, base = base, body = body, expires = expires }
    sections[k], sections[label], at = section, section, at + size
  end
  if count == 0 or at ~= labels_at or byte(value, -1) ~= VALUE_VERSION then fail(UNREADABLE) end
  return sections, expires
end

-- Brings a section up to date.
local function update(section, rule)
  section.rule = rule
  rule.kind.advance(section)
  rule.kind.describe(section)
  return section
end

-- Reads the key of a part: the expiry, and the sections, brought up to date. First come those of the part's rules, then
-- those of other rules that still count, so that two releases with different rules can share a key.
local function read(part)
  if part.are_slots then fail(UNREADABLE) end
  local value, held, sections = get(part.i), {}, {}
  part.sections, part.expires = sections, 0
  if value and value ~= '' then held, part.expires = parse(value) end -- nor does the fast path tell an empty value from none
  if part.expires <= now then held, part.expires = {}, 0 end -- nothing counts
  for k, rule in ipairs(part.rules) do
    sections[k] = update(held[rule.label] or { label = rule.label, used = 0, newest = 0, base = 0, body = '' }, rule)
  end
  for _, section in ipairs(held) do
    if not section.rule and #sections < MOST_SECTIONS then
      update(section, rule_of(section.label))
      if section.used > 0 then sections[#sections + 1] = section end
    end
  end
end

-- Leaves the sections of a part to be written. The key expires at the last release or at most a minute later, so that
-- most new steps need no new expiry. If one section needs wide entries, all get them.
local function write(part)
  local used, bodies, labels, since, dues, latest, is_wide = '', '', '', 0, {}, nil, false
  for _, section in ipairs(part.sections) do
    section.rule.kind.describe(section)
    is_wide = is_wide or section.needs_wide
  end
  local first = part.sections[1]
  for k, section in ipairs(part.sections) do
    local kind, counts = section.rule.kind, section.used > 0
    if kind.body then kind.body(section, is_wide) end
    if not counts then section.newest, section.base = 0, 0 end
    used, labels = used .. pack(COUNT, section.used), labels .. section.label .. pack(BODY_SIZE, #section.body)
    bodies = bodies .. (k > 1 and pack(HEAD, section.newest, section.base) or '') .. section.body
    local i = math.min(k, 2)
    dues[i] = math.min(dues[i] or FOR_EVER, counts and section.due or 0)
    if counts then since = math.max(since, section.start) end
    if counts and (not latest or section.release > latest.release) then latest = section end
  end
  if not latest then
    values[part.i] = GONE
    return
  end
  local expires, release = part.expires, latest.release
  if expires < release or expires > release + A_MINUTE then
    expires = release + math.min(latest.rule.window + A_SECOND, A_MINUTE)
  end
  if expires % 1 ~= 0 or expires <= now or expires >= 2 ^ 48 then fail(UNREADABLE) end -- from spoiled times
  expiries[part.i] = expires
  local count = #part.sections
  local mark = count == #part.rules and part.mark + (is_wide and 1 or 0) or 0
  values[part.i] = pack(FRONT, mark, since, dues[1], dues[2] or FOR_EVER, expires) .. pack(HEAD, first.newest, first.base)
    .. used .. bodies .. labels .. string.char(count, VALUE_VERSION)
end
