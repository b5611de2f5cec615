# frozen_string_literal: true

module Tracepoint
  # Normalizes SQL: statements that differ only in values get the same form.
  #
  # Literals and placeholders become `?`, IN lists and VALUES rows collapse, comments are
  # removed, and white space becomes a single space. Quoted identifiers, NULL, TRUE, and
  # FALSE stay. Strings follow the SQL standard, plus PostgreSQL's E'' and $$ $$. MySQL's
  # backslashes and "strings" are not supported.
  module SqlStatement
    # Length limit in bytes. Lists of values that are cut there usually collapse anyway.
    LONGEST = 10_000

    # The kept tokens come first, so that their contents are not taken for literals.
    TOKEN = %r{
      (?<kept>"(?:[^"]|"")*(?:"|\z) | `[^`]*(?:`|\z) | \[[a-z_]\w*\] | (?![ebnx]')[a-z_]\w* | ::)
      | (?<comment>--[^\n]*|/\*.*?(?:\*/|\z))
      | (?<literal>
          e'(?:[^'\\]|\\.|'')*(?:'|\z) | [bnx]?'(?:[^']|'')*(?:'|\z)
          | \$(?<tag>(?:[a-z_]\w*)?)\$.*?(?:\$\k<tag>\$|\z)
          | 0x\h+ | (?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)? | \$\d+ | :[a-z_]\w*)
    }imx.freeze
    SIGN = /([=<>(,]|\b(?:AND|BETWEEN|LIMIT|OFFSET|THEN|ELSE|WHEN|SELECT|VALUES))(\s*)[-+]\s*\?/i.freeze
    LIST = /\bIN\s*\(\s*\?(?:\s*,\s*\?)*\s*(?:\)|,?\s*\z)/i.freeze
    # Parentheses may nest three deep. Unlimited depth would take quadratic time.
    ROW = /\((?>[^()]+|\((?>[^()]+|\([^()]*\))*\))*(?:\)|\z)/.freeze
    ROWS = /\bVALUES\s*#{ROW}(?:\s*,\s*#{ROW})*/i.freeze
    private_constant :LONGEST, :TOKEN, :SIGN, :LIST, :ROW, :ROWS

    # @param sql [String] in any encoding, valid or not
    # @return [String] in the encoding of `sql`
    def self.normalize(sql)
      text = sql.byteslice(0, LONGEST).b
      text.gsub!(TOKEN) { $~[:kept] || ($~[:comment] ? " " : "?") }
      text.gsub!(/\s+/, " ") # first: the patterns below would otherwise retry each space
      text.gsub!(SIGN, '\1\2?')
      text.gsub!(LIST, "IN (?)")
      text.gsub!(ROWS, "VALUES (?)")
      text.strip.force_encoding(sql.encoding)
    end
  end
  private_constant :SqlStatement
end
