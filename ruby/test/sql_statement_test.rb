# frozen_string_literal: true

require "test_helper"
require "tracepoint/sql_statement"

class SqlStatementTest < Minitest::Test
  FORMS = {
    "SELECT 1" => "SELECT ?",
    'SELECT "items".* FROM "items" WHERE "items"."id" = 7 LIMIT 1' => 'SELECT "items".* FROM "items" WHERE "items"."id" = ? LIMIT ?',
    "SELECT * FROM t1 WHERE a2 = 3 AND b = 'it''s 5'" => "SELECT * FROM t1 WHERE a2 = ? AND b = ?",
    "SELECT * FROM t WHERE a = ? AND b = $1 AND c = :name" => "SELECT * FROM t WHERE a = ? AND b = ? AND c = ?",
    "SELECT a::int, 'x'::text FROM t" => "SELECT a::int, ?::text FROM t",
    "SELECT 1.5, .5, 1e9, 2.5E-3, 0xFF, x'AB', N'text'" => "SELECT ?, ?, ?, ?, ?, ?, ?",
    "SELECT E'it\\'s', 'C:\\' FROM t" => "SELECT ?, ? FROM t",
    "SELECT $$a 'b' 1$$, $tag$ $$ 2 $tag$ FROM t" => "SELECT ?, ? FROM t",
    "WHERE a = -5 AND b < - 6 AND c BETWEEN -1 AND -2" => "WHERE a = ? AND b < ? AND c BETWEEN ? AND ?",
    "WHERE a - 5 > 0" => "WHERE a - ? > ?",
    "WHERE id IN (1, 2, 3) AND x IN ('a')" => "WHERE id IN (?) AND x IN (?)",
    "WHERE id IN (SELECT id FROM u WHERE n = 3)" => "WHERE id IN (SELECT id FROM u WHERE n = ?)",
    "INSERT INTO t (a, b) VALUES (1, NULL), ('x)', (2 + 3)), (now(), 4) RETURNING id" => "INSERT INTO t (a, b) VALUES (?) RETURNING id",
    "SELECT a -- comment 'x'\nFROM t /* 5 'y' */ WHERE b IS NULL" => "SELECT a FROM t WHERE b IS NULL",
    "/*app:shop*/ SELECT\n  a,\t b\n" => "SELECT a, b",
    'SELECT "a ""1"" -- b", `c 2`, [d] FROM t' => 'SELECT "a ""1"" -- b", `c 2`, [d] FROM t',
    "SELECT '/* no comment */', '--' FROM t" => "SELECT ?, ? FROM t",
    "SELECT TRUE, a FROM t WHERE b IS NOT NULL" => "SELECT TRUE, a FROM t WHERE b IS NOT NULL",
    "SELECT date'2020-01-01', price'x', n'y' FROM t" => "SELECT date?, price?, ? FROM t",
    "SELECT 'never ends" => "SELECT ?",
    "SELECT 1 /* never ends" => "SELECT ?",
    "" => ""
  }.freeze

  def test_forms
    FORMS.each { |sql, form| assert_equal form, normalize(sql), sql }
  end

  def test_a_form_is_its_own_form
    FORMS.each_value { |form| assert_equal form, normalize(form) }
  end

  def test_encodings
    sql = "SELECT 'é' AS é"
    assert_equal "SELECT ? AS é", normalize(sql)
    assert_equal "SELECT ? AS \xFF".b, normalize("SELECT '\xFF' AS \xFF").b
    assert_predicate normalize(sql), :valid_encoding?
    assert_equal "SELECT 'é' AS é", sql
    assert_equal "SELECT ?", normalize("SELECT 1".freeze)
  end

  def test_long_lists_are_cut_off
    assert_equal "SELECT a FROM t WHERE id IN (?)", normalize("SELECT a FROM t WHERE id IN (#{(1..9_000).to_a.join(", ")}) AND b = 3")
    rows = "INSERT INTO t (a) VALUES (?)"
    assert_equal rows, normalize("INSERT INTO t (a) VALUES #{Array.new(9_000) { |i| "(#{i}, 'x')" }.join(", ")}")
  end

  # The time for these must not grow faster than their length.
  def test_hostile_texts
    ["(" * 10_000, "VALUES " + ("(" * 9_000), "IN (?#{",?" * 4_000}", "'" * 9_999, "$a$" * 3_000, "-" * 9_999, "/*" * 5_000,
     "VALUES (a" * 1_000, "\"" * 9_999, "1e" * 5_000, "." * 9_999, "#{"a" * 9_999}'",
     "x IN (1#{" " * 9_999}"].each { |sql| assert_operator normalize(sql).size, :<=, 10_000 }
  end

  private

  def normalize(sql)
    Tracepoint.module_eval("SqlStatement", __FILE__, __LINE__).normalize(sql)
  end
end
