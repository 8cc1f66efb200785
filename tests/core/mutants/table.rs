//! The mutants: for each file of `lua/`, a text that the file holds once, and another text in its place.

/// By file. Mutants of `plain/` are mutants of the plain script alone, all others of the whole script.
pub(super) const MUTANTS: &[(&str, &[(&str, &str)])] = &[
    (
        "plain/blocks.lua",
        &[
            (
                "held_until >= stop then return",
                "held_until > stop then return",
            ),
            ("held_until > now and", "held_until >= now and"),
            ("if stop > latest then", "if stop >= latest then"),
            (
                "local latest, reply = now, nil",
                "local latest, reply = 0, nil",
            ),
            ("for place = 0, count - 1 do", "for place = 0, count - 2 do"),
            (
                "sections[1].units < strikes",
                "sections[1].units <= strikes",
            ),
            ("    values[strikes.i] = GONE\n", ""),
            ("if stop > now then values", "if stop >= now then values"),
            (".. pack('<I6', now) ..", ".. pack('<I6', stop) .."),
            ("#held < BLOCK_SIZE + 10", "#held < BLOCK_SIZE + 11"),
        ],
    ),
    (
        "plain/bucket.lua",
        &[
            ("-elapsed > rule.window", "-elapsed >= rule.window"),
            (
                "math.floor(rule.limit * period / refill)",
                "math.ceil(rule.limit * period / refill)",
            ),
            ("missing - elapsed * rule.refill", "missing - elapsed"),
            (
                "elseif elapsed > 0 and rule.limit then",
                "elseif rule.limit then",
            ),
            (
                "elseif elapsed > 0 and rule.limit then",
                "elseif elapsed > 0 then",
            ),
            (
                "(MOST_UNITS - MOST_UNITS % period) / period",
                "MOST_UNITS / period",
            ),
            ("math.max(0, section.used -", "(section.used -"),
            ("section.due + missing_for", "section.due + missing_for + 1"),
            (
                "math.ceil(section.used / rule.period)",
                "math.floor(section.used / rule.period)",
            ),
        ],
    ),
    (
        "plain/calendar.lua",
        &[
            ("12 * 3600000", "11 * 3600000"),
            ("bounds[k] <= now do", "bounds[k] < now do"),
            ("48 * 3600000", "47 * 3600000"),
            ("or bounds[count] <= now + AHEAD", ""),
            (
                "while bounds[k] <= now + AHEAD",
                "while bounds[k] < now + AHEAD",
            ),
            ("bounds[k] + SAME_END - 1", "bounds[k]"),
            (
                "rule.stop - newest < SAME_END",
                "rule.stop - newest <= SAME_END",
            ),
            (
                "math.max(newest, rule.stop) or newest",
                "rule.stop or newest",
            ),
            (
                "section.used + units, math.max(section.newest, section.rule.stop)",
                "section.used + units, section.rule.stop",
            ),
            ("section.newest) >= SAME_END", "section.newest) > SAME_END"),
            (
                "if math.abs(stop - section.newest) >= SAME_END then return end",
                "",
            ),
            ("math.max(0, section.used - units)", "section.used - units"),
        ],
    ),
    (
        "plain/check.lua",
        &[
            ("if units > room then", "if units >= room then"),
            (
                "math.min(count, (room - room % units) / units)",
                "(room - room % units) / units",
            ),
            (
                "units <= rule.limit and times",
                "units < rule.limit and times",
            ),
            (
                "usage_of(part, count < asked)",
                "usage_of(part, count == 0)",
            ),
            ("if part.units * count > 0 then", "if part.units > 0 then"),
            (
                "part.sections[k], part.units * count)",
                "part.sections[k], part.units)",
            ),
            (
                "has_changed = has_changed or section.used ~= used",
                "has_changed = section.used ~= used",
            ),
            ("part.units, count)", "part.units, asked)"),
            ("-part.units, ends[k])", "-part.units, ends[1])"),
            ("rule.most - section.units", "rule.most"),
            (
                "math.min(part.units, rule.most - section.units)",
                "part.units",
            ),
            ("if added > 0 then", "if part.units > 0 then"),
            ("if part.units < 0 then", "if true then"),
            (
                "#arg - #rules * STEP_END_SIZE + 1",
                "#arg - #rules * STEP_END_SIZE",
            ),
        ],
    ),
    (
        "slots.lua",
        &[
            ("ID_SIZE + 1", "ID_SIZE"),
            (
                "score > now and score <= latest",
                "score > now and score < latest",
            ),
            ("if not held[all[k]] then", "if true then"),
            ("times * units + units do", "times * units + 1 do"),
            ("need > limit - used", "need >= limit - used"),
            ("need > limit - used - ends[times]", "need > limit - used"),
            ("(need > 0 or units == 0)", "true"),
            ("(need > 0 or units == 0)", "need > 0"),
            ("view.limit + view.units", "view.limit"),
            ("over - 1)", "over)"),
            ("over > view.used and", "over >= view.used and"),
            (
                "expiries[i] = tonumber(last), {}, view.window",
                "expiries[i] = 0, {}, view.window",
            ),
            ("for k = 1, taken do", "for k = 1, 1 do"),
            ("view.used + taken, latest", "view.used, latest"),
            ("score > now and score", "score >= now and score"),
            ("bits[byte] + 2 ^ place", "bits[byte] + 1"),
            ("local place = (k - 1) % 8", "local place = k % 8"),
            ("used = used - #found", ""),
            (
                "latest = used > 0 and expiry",
                "latest = used > 9 and expiry",
            ),
            ("ask('ZADD', i, spread(pairs))", ""),
            ("latest = tonumber(last)\n  else", "latest = 0\n  else"),
            ("action == RENEW) end", "true) end"),
            ("not is_denied and count or 0", "count or 0"),
        ],
    ),
    (
        "plain/formats.lua",
        &[
            (
                "MOST_UNITS = 9007199254740991",
                "MOST_UNITS = 9007199254740990",
            ),
            ("A_MINUTE = 60000", "A_MINUTE = 59999"),
            ("FOR_EVER = 2 ^ 47", "FOR_EVER = 2 ^ 46"),
            ("MOST_SECTIONS = 255", "MOST_SECTIONS = 254"),
            (
                "LIMIT, LIMIT_SIZE = '<I7', 7",
                "LIMIT, LIMIT_SIZE = '<I6', 7",
            ),
            ("BOUNDARY = '<I6'", "BOUNDARY = '<I5'"),
            ("POLICY_AT = 17", "POLICY_AT = 16"),
            (
                "UNREADABLE, OTHER_VERSION, OTHER_TIME = '\\1', '\\2', '\\3', '\\4'",
                "UNREADABLE, OTHER_VERSION, OTHER_TIME = '\\1', '\\3', '\\2', '\\4'",
            ),
            (
                "OTHER_TIME = '\\1', '\\2', '\\3', '\\4'",
                "OTHER_TIME = '\\1', '\\2', '\\3', '\\2'",
            ),
            ("error({ reason = reason })", "error(reason)"),
        ],
    ),
    (
        "plain/kinds.lua",
        &[
            ("[1] = concurrency", "[1] = steps"),
            ("[2] = calendar", "[2] = steps"),
            ("limit = limit, most", "limit = limit or 0, most"),
            ("most = MOST_UNITS", "most = MOST_UNITS - 1"),
            ("least_room = 0", "least_room = 32"),
            ("or unknown", "or steps"),
            (
                "rule.kind.new(rule, number, second)",
                "rule.kind.new(rule, second, number)",
            ),
            ("[8] = bucket", "[7] = bucket"),
            (
                "section.used, now, section.expires",
                "section.used, now, now",
            ),
            (
                "local first, second = unpack(LABEL, label)",
                "local first, second = unpack(LABEL, label), 0",
            ),
            (
                "function unknown.advance() end",
                "function unknown.advance(section) section.used = 0 end",
            ),
        ],
    ),
    (
        "plain/operations.lua",
        &[
            ("  values[parts[1].i] = GONE\n", ""),
            ("2 ^ 48 - 1", "2 ^ 48"),
            ("parts[1].units, 2 ^ 48", "parts[1].units + 1, 2 ^ 48"),
            (
                "block_until(parts, parts[1].units)",
                "block_until(parts, math.max(parts[1].units, now))",
            ),
            (
                "limit, limit_at = unpack(LIMIT, arg, limit_at)",
                "limit = unpack(LIMIT, arg, limit_at)",
            ),
            (
                "task.action == TAKE and -task.units",
                "task.action == TAKE and 1 - task.units",
            ),
            ("task.policy_at > 0 and", "task.policy_at > 1 and"),
            (
                "if block then return block, 0 end",
                "if block then return block, task.count end",
            ),
            (
                "task.action == SHADOWS and admitted or task.count",
                "task.count",
            ),
            (
                "  for i = first, last do values[i], expiries[i] = nil, nil end\n  local failure",
                "  local failure",
            ),
        ],
    ),
    (
        "plain/steps.lua",
        &[
            (
                "section.rule.retention / section.rule.step + 1",
                "section.rule.retention / section.rule.step",
            ),
            ("most >= ENTRIES[width].wrap", "most > ENTRIES[width].wrap"),
            (
                "return stop + rule.retention > time end",
                "return stop + rule.retention >= time end",
            ),
            (
                "now + 2 * rule.step + math.max",
                "now + rule.step + math.max",
            ),
            ("math.max(rule.step, rule.retention)", "rule.retention"),
            ("return total >= excess end", "return total > excess end"),
            ("widen(section, section.used)", "widen(section, 0)"),
            ("if own == 0 then return end", ""),
            ("units = math.min(units, own)", ""),
            (
                "section.due = math.min(newest, first + rule.retention)",
                "section.due = newest",
            ),
            ("units < own and i or i + 1", "i"),
            ("units < own and i or i + 1", "i + 1"),
            (
                "section.newest, section.base, section.width = 0, 0, 0",
                "section.base, section.width = 0, 0",
            ),
            ("total - before\n", "total\n"),
        ],
    ),
    (
        "plain/value.lua",
        &[
            (
                "if part.expires <= now then",
                "if part.expires <= now + 1 then",
            ),
            (
                "if section.used > 0 then sections[#sections + 1] = section end",
                "sections[#sections + 1] = section",
            ),
            (
                "math.max(length, room * 2, 32)",
                "math.max(length, room * 3, 32)",
            ),
            ("length * 4 < room", "length * 4 <= room"),
            ("expires < release or", "expires <= release or"),
            ("expires > release + A_MINUTE", "false"),
            (
                "math.min(latest.rule.window, A_MINUTE)",
                "math.max(latest.rule.window, A_MINUTE)",
            ),
            (
                "since = math.max(since, section.start)",
                "since = section.start",
            ),
            ("counts and section.due or 0", "section.due"),
            (
                "section.release > latest.release",
                "section.release < latest.release",
            ),
            ("count == 0 or at ~= labels_at", "at ~= labels_at"),
        ],
    ),
    (
        "fast/decide.lua",
        &[
            ("action == SHADOWS and admitted or task.count", "task.count"),
            (
                "if is_check and count == 0 then",
                "if is_check and count == 9 then",
            ),
            ("  if stored[block] then reply = nil end\n", ""),
            ("  blocks_found = 1 --", "  --"),
            ("blocks_found ~= 0 and try", "false and try"),
            ("spread(KEYS, last_part + 1)", "spread(KEYS, last_part + 2)"),
            ("sub(value, -#policy.ending) == policy.ending", "true"),
            ("front[rules * 2 + 2] <= now and", ""),
            ("if units > (is_check and", "if units - 1 > (is_check and"),
            (
                "if front[k + rules] <= now then is_due",
                "if front[k + rules] < now then is_due",
            ),
            ("is_check and limits[k] or", "limits[k] or"),
            ("or 2 ^ 53 - 1)", "or 2 ^ 53)"),
            ("if task.action == TAKE then", "if false then"),
            ("ends > now and", "ends >= now and"),
            (
                "score == false and used < policy.limit",
                "used < policy.limit",
            ),
            ("used < policy.limit", "used <= policy.limit"),
            ("used + 1, latest, 0", "used, latest, 0"),
            ("used - 1, tonumber(newest)", "used, tonumber(newest)"),
            ("elseif action > RENEW and is_held", "elseif action > RENEW"),
            ("action == RENEW and is_held", "action == RENEW"),
            ("      if is_check then\n", "      if true then\n"),
            ("elseif is_check and (is_denied", "elseif (is_denied"),
            ("elseif is_check and (is_denied or", "elseif is_check and ("),
            ("if is_due and units > 0", "if is_due"),
            ("    elseif fits then\n", "    else\n"),
            ("elseif not is_due then", "else"),
            ("if units > 0 then values[i] = counts end", ""),
            ("if is_denied then count = 0 end", ""),
            (
                "values[part], expiries[part] = nil, nil",
                "expiries[part] = nil",
            ),
            ("not fits and count > 1 then", "false then"),
        ],
    ),
    (
        "fast/usage.lua",
        &[
            ("% 2 ^ 16 < bound then", "% 2 ^ 16 <= bound then"),
            (
                "if newest + retention <= now then",
                "if newest + retention < now then",
            ),
            (
                "if first + retention <= now then",
                "if first + retention < now then",
            ),
            (
                "used, base = used - (total - base) % 2 ^ 16, total",
                "used = used - (total - base) % 2 ^ 16",
            ),
            (
                "(newest / step - following)",
                "(newest / step - following - 1)",
            ),
            ("fits = fits and over <= 0", "fits = fits and over < 0"),
            ("elseif over <= 0 and front", "elseif over <= 1 and front"),
            ("if over > 1 then -- else", "if over > 2 then -- else"),
            ("units <= limit and fits_at", "units < limit and fits_at"),
            ("fits_at = first + retention", "fits_at = first + step"),
            ("over > 1 and width > 1", "false"),
        ],
    ),
    (
        "fast/charge.lua",
        &[
            ("    first = current\n", "    first = now\n"),
            ("elseif newest < current then", "elseif newest < now then"),
            ("used >= 2 ^ 16 then", "used > 2 ^ 16 then"),
            ("(base + used) % 2 ^ 16)", "used % 2 ^ 16)"),
            ("if length > room or room > 64", "if room > 64"),
            ("current < due and current or due", "current"),
            ("k - next_k", "0"),
            ("changed = changed .. sub(value, copy_from, at - 1)", ""),
            (
                "if newest - step > since then since = newest - step end",
                "",
            ),
            (
                "if newest + retention > expires then",
                "if newest > expires then",
            ),
            ("front[k + 1] = used + units", "front[k + 1] = used"),
            ("entry .. sub(value, copy_from)", "entry"),
        ],
    ),
    (
        "fast/policy.lua",
        &[
            (
                "or first > 0 and first ~= CALENDAR and first ~= BUCKET",
                "or first > CALENDAR",
            ),
            (
                "string.sub(arg, at, labels_end)",
                "string.sub(arg, at, labels_end - 1)",
            ),
            ("if kind and kind ~= first or", "if"),
            ("18 + rules * 7", "18 + rules * 6"),
            ("labels[k] = first % KIND", "labels[k] = first"),
            (
                "unpack(used_format, arg, 17)",
                "unpack(used_format, arg, 18)",
            ),
            ("rep('I6I6', rules)", "rep('I6I5', rules)"),
            ("14 + rules * 54", "0"),
            ("2 ^ 44, 1, 2, 8", "2 ^ 43, 1, 2, 8"),
            ("for k = 1, rules * 2, 2 do", "for k = 3, rules * 2, 2 do"),
        ],
    ),
    (
        "fast/bucket.lua",
        &[
            (
                "front[k + rules + 1]) * refill",
                "front[k + rules + 1]) * period",
            ),
            ("if gained < 0 then return end", ""),
            (
                "gained < missing and missing - gained or 0",
                "missing - gained",
            ),
            ("fits and units <= (", "fits and units < ("),
            ("fits = fits and units", "fits = units"),
            ("- missing) / period", "- missing) / period + 1"),
            (
                "front[k + 1], front[k + rules + 1] = missing, now",
                "front[k + 1] = missing",
            ),
            ("units * labels[k * 2 - 1]", "units * labels[1]"),
            (
                "if front[k + 1] > (front[rules * 2 + 3] - now) * labels[k * 2] then return end",
                "",
            ),
            (
                "front[k + 1] > (front[rules * 2 + 3] - now) * labels[k * 2]",
                "now + front[k + 1] / labels[k * 2] > front[rules * 2 + 3]",
            ),
            (" and not is_denied then", " then"),
            ("front[k + 1], now, 0)", "front[k + 1], 0, 0)"),
        ],
    ),
    (
        "fast/settlement.lua",
        &[
            ("front[k + 1] - units, 0", "front[k + 1] + units, 0"),
            (" or newest ~= unpack('<I6', arg, end_at)", ""),
            ("front[k + rules + 1] <= now or ", ""),
            ("used <= before", "used < before"),
            ("end_at + 6", "end_at"),
            ("at + 28 + room,", "at + 28 + length,"),
            ("  values[i] = pack", "  local values = {} values[i] = pack"),
            ("width > 1 or ", ""),
            ("#arg - rules * 6 + 1", "#arg - 5"),
            ("if length > 0 then\n", "if length > 999 then\n"),
        ],
    ),
    (
        "task.lua",
        &[
            ("action >= JOINED", "action > JOINED"),
            ("action % JOINED", "action"),
            ("JOINED = 16", "JOINED = 8"),
            ("'<I1I4I7I1I2'", "'<I1I4I7I1I1'"),
            ("count = count", "count = 1"),
            ("units = units", "units = units % 2 ^ 48"),
            ("block_count = block_count", "block_count = 0"),
            ("policy_at = policy_at", "policy_at = 0"),
            ("policy = nil", "policy = false"),
            ("rules = nil", "rules = {}"),
            ("  tasks[arg] = task\n", ""),
        ],
    ),
    (
        "operation.lua",
        &[
            ("last < last_part and (", "last < last_part - 1 and ("),
            ("while last < last_part and", "while false and"),
            (").is_joined do", ").is_joined == false do"),
            ("last = last + 1 end", "last = last + 1 break end"),
            ("first, tasks[ARGV[first]]", "first, tasks[ARGV[1]]"),
            (
                "or read_task(ARGV[last + 1], tasks)",
                "or read_task(ARGV[last], tasks)",
            ),
            ("= task.block_count,", "= 0,"),
        ],
    ),
    (
        "write.lua",
        &[
            ("next_block + block_count", "next_block"),
            ("last + 1, count", "last + 1, 1"),
            ("written = try('DEL', key)", "written = nil"),
            (
                "expires - expiry_origin",
                "expires - expiry_origin - 86400000",
            ),
            ("expiry_option, expires", "'PXAT', expires"),
            ("next_block, admitted)", "next_block, 1)"),
            ("next_block, admitted)", "last_part + 1, admitted)"),
            ("for part = first, last do", "for part = first, first do"),
            ("if value == GONE then", "if value == nil then"),
            (
                "local key, value, expires, written = KEYS[part]",
                "local key, value, expires, written = KEYS[first]",
            ),
            ("'table' and written.err", "'table' and written.ok"),
            ("(string.gsub(refusal, '^.*: %-', ''))", "refusal"),
            ("try('ZADD', key, spread(value[k]))", "nil"),
            ("'-inf', now)", "'-inf', now + 1)"),
            ("replies[#replies + 1] = reply", "replies[2] = reply"),
        ],
    ),
    (
        "call.lua",
        &[
            ("1, last_part + 1, 0\n", "1, last_part + 2, 0\n"),
            (
                "version == CALL_VERSION + TIME_FOLLOWS and",
                "version >= TIME_FOLLOWS and",
            ),
            ("if version == CALL_VERSION then", "if version < 128 then"),
            ("time[2] / 1000", "time[2] / 100"),
            ("(ms - ms % 1)", "ms"),
            ("'PXAT', 0", "'PX', 0"),
            ("'PX', now - slack", "'PX', now"),
            ("pack('<I6', now)", "pack('<I6', now + 1)"),
            ("TAKE, RENEW = 1, 2, 3, 7", "TAKE, RENEW = 1, 3, 2, 7"),
            ("TAKE, RENEW = 1, 2, 3, 7", "TAKE, RENEW = 1, 2, 3, 5"),
            (
                "CONCURRENCY, CALENDAR, BUCKET = 1,",
                "CONCURRENCY, CALENDAR, BUCKET = 0,",
            ),
            ("BUCKET = 1, 2, 8", "BUCKET = 1, 3, 8"),
            ("local GONE = ''", "local GONE = '-'"),
            ("local blocks_found --", "local blocks_found = 0 --"),
        ],
    ),
];
