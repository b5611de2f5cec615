# frozen_string_literal: true

module Tracepoint
  # The form of SQL that statements have in common which differ in values alone.
  #
  # Literals and placeholders become `?`, IN lists and VALUES rows collapse,
  # comments go, white space is one space. Quoted identifiers, NULL, TRUE and
  # FALSE stay. Strings are those of the SQL standard, and PostgreSQL's E'' and
  # $$ $$; MySQL's backslashes and "strings" are not known.
  module SqlStatement
    # Length limit in bytes; lists of values that are cut there mostly collapse all the same.
    LONGEST = 10_000

    # What is kept as it is comes first, so that nothing within it is a literal.
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
    # Parentheses nest three deep: any depth would take a time that grows with its square.
    ROW = /\((?>[^()]+|\((?>[^()]+|\([^()]*\))*\))*(?:\)|\z)/.freeze
    ROWS = /\bVALUES\s*#{ROW}(?:\s*,\s*#{ROW})*/i.freeze
    private_constant :LONGEST, :TOKEN, :SIGN, :LIST, :ROW, :ROWS

    # @param sql [String] in any encoding, valid or not
    # @return [String] in the encoding of `sql`
    def self.normalize(sql)
      text = sql.byteslice(0, LONGEST).b
      text.gsub!(TOKEN) { $~[:kept] || ($~[:comment] ? " " : "?") }
      text.gsub!(/\s+/, " ") # first: the lists below would try each space again
      text.gsub!(SIGN, '\1\2?')
      text.gsub!(LIST, "IN (?)")
      text.gsub!(ROWS, "VALUES (?)")
      text.strip.force_encoding(sql.encoding)
    end
  end
  private_constant :SqlStatement
end
