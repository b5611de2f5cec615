# frozen_string_literal: true

module Tracepoint
  module Methods
    # Derives a method's name in Ruby, `Shop::Till#pay!`, and its span's name,
    # `shop_till:pay_bang`.
    module Naming
      OPERATORS = {
        "+" => "op_plus", "-" => "op_minus", "*" => "op_times", "/" => "op_div", "%" => "op_mod", "**" => "op_pow",
        "+@" => "op_uplus", "-@" => "op_uminus", "!" => "op_not", "~" => "op_compl",
        "==" => "op_eq", "!=" => "op_neq", "===" => "op_case", "=~" => "op_match", "!~" => "op_nmatch",
        "<=>" => "op_cmp", "<" => "op_lt", "<=" => "op_le", ">" => "op_gt", ">=" => "op_ge",
        "<<" => "op_lshift", ">>" => "op_rshift", "&" => "op_and", "|" => "op_or", "^" => "op_xor",
        "[]" => "op_aref", "[]=" => "op_aset", "`" => "op_backtick"
      }.freeze
      ENDINGS = { "!" => "_bang", "?" => "_p", "=" => "_set" }.freeze

      module_function

      # @return [String, nil] nil if the class has no name
      def ruby_name(owner, name)
        of, separator = owner.singleton_class? ? [attached(owner), "."] : [owner, "#"]
        path = path_of(of)
        path && "#{path}#{separator}#{name}"
      end

      # @param as [Symbol, String, nil] a name that replaces the derived one
      # @return [Array(String, String)] provider and name
      def split(owner, name, as)
        check_syntax(name)
        text = as.to_s
        return Names.split(as) if text.include?(":")

        [Names.check(provider(owner), "the provider's name of #{owner} (set it with as:)"),
         Names.check_span(Names.check(as ? text : span_name(owner, name), "the name of a span for #{name} (set it with as:)"))]
      end

      # `define_method` accepts names that `def` rejects.
      def check_syntax(name)
        return if OPERATORS.key?(name.to_s) || /\A[[:alpha:]_][[:alnum:]_]*[!?=]?\z/.match?(name)

        raise DefinitionError, "#{name.inspect} cannot be traced: `def` cannot define a method of this name"
      end

      def provider(owner)
        path = path_of(owner.singleton_class? ? attached(owner) : owner)
        raise DefinitionError, "#{owner.inspect} has no name: set one with as: \"provider:name\"" unless path

        underscore(path)
      end

      def underscore(path)
        path.gsub("::", "_").gsub(/([A-Z\d]+)([A-Z][a-z])|([a-z\d])([A-Z])/) { "#{$1 || $3}_#{$2 || $4}" }.downcase
      end

      def span_name(owner, name)
        text = name.to_s
        word = OPERATORS[text] || text.sub(/[!?=]\z/) { |ending| ENDINGS[ending] }
        owner.singleton_class? ? "self_#{word}" : word
      end

      # A class may override `name`.
      def path_of(owner)
        Module.instance_method(:name).bind_call(owner) if owner.is_a?(Module)
      end

      if Class.method_defined?(:attached_object)
        def attached(singleton)
          singleton.attached_object
        end
      else
        def attached(singleton)
          ObjectSpace.each_object(singleton).find { |object| object.singleton_class.equal?(singleton) }
        end
      end
    end
    private_constant :Naming
  end
end
