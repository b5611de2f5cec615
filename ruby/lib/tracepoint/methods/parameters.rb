# frozen_string_literal: true

module Tracepoint
  module Methods
    # A method's parameter list as source code, and calls that pass all arguments on.
    class Parameters
      # Keywords may have these names, but local variables cannot be read by them.
      RESERVED = %i[
        __ENCODING__ __FILE__ __LINE__ BEGIN END alias and begin break case class def defined? do else elsif end ensure
        false for if in module next nil not or redo rescue retry return self super then true undef unless until when
        while yield
      ].freeze
      # True if an anonymous `*` or `**` can be passed on.
      ANONYMOUS = RUBY_VERSION >= "3.2"
      READABLE = %i[req opt rest keyreq key keyrest].freeze
      # Stands for a keyword that was not given.
      NONE = ":__tracepoint_none"
      # How Method#parameters shows `...`.
      FORWARDING = [%i[rest *], *([%i[keyrest **]] if RUBY_VERSION >= "3.1"), %i[block &]].freeze

      # @param list [Array] as returned by Method#parameters
      # @param destructures [Boolean] whether a parameter without a name destructures an
      #   array; otherwise it gets a name
      def initialize(list, destructures:)
        @destructures = destructures
        @forwards = list.drop_while { |kind,| kind == :req } == FORWARDING
        list -= FORWARDING if @forwards
        @flags = !ANONYMOUS && flags?(list)
        @list = distinct(@flags ? list - [%i[keyrest **]] : list)
      end

      # @return [String] the text between the parentheses of a `def`
      def to_s
        [*@list.map { |kind, name, number| declaration(kind, name, number) }, *("..." if @forwards)].join(", ")
      end

      # Return whether it names its block.
      def block?
        @forwards || !kind(:block).empty? || !kind(:noblock).empty?
      end

      # Return whether the wrapper needs `ruby2_keywords`.
      def ruby2_keywords?
        @flags
      end

      # @return [Array<Symbol>] names of the arguments that have one
      def names
        @list.filter_map { |kind, name,| name if READABLE.include?(kind) && !name.match?(/\A(?:__tracepoint_|\*|&)/) }
      end

      # @param names [Array<Symbol>] names of arguments
      # @return [Array<String>] code that reads each, nil if the default is used
      def reads(names)
        names.map do |name|
          raise ArgumentError, "no argument #{name} (there are: #{self.names.join(", ")})" unless self.names.include?(name)

          found = @list.find { |_, it,| it == name }
          found.first == :key ? "(#{none(found)} ? nil : #{read(name)})" : read(name)
        end
      end

      # Return an expression that calls `target` with the method's arguments.
      # @param block [String, nil] the block, if the method does not name it
      def call(target, block = nil)
        return "#{target}(#{[*positional(kind(:opt).size), "..."].join(", ")})" if @forwards

        tail = blocks(block)
        keywords = kind(:keyreq).map { |it| pair(it) }
        rest = kind(:keyrest).map { |it| "**#{it[1] unless anonymous?(it)}" }
        without = each_count { |given| "#{target}(#{[*positional(given), *keywords, *rest, *tail].join(", ")})" }
        return without if kind(:key).empty?

        with = each_count { |given| "#{target}(#{[*positional(given), *keywords, "**__tracepoint_k", *rest, *tail].join(", ")})" }
        "(#{kind(:key).map { |it| none(it) }.join(" && ")}) ? (#{without}) : (#{given_keywords}; #{with})"
      end

      private

      # Ruby 3.1 shows such a method with an anonymous `**`, which since 3.2 works as well.
      # Older versions do not show it; there the flag does no harm to other methods.
      def flags?(list)
        return list.include?(%i[keyrest **]) if RUBY_VERSION >= "3.1"

        list.any? { |kind,| kind == :rest } && list.none? { |kind,| %i[key keyreq keyrest nokey].include?(kind) } && !@forwards
      end

      # Number the parameters, and replace unusable names.
      def distinct(list)
        seen = []
        list.each_with_index.map do |(kind, name), number|
          name = nil if name && (seen.include?(name) || name.match?(/\A_\d\z/))
          seen << name
          name ||= made_up(kind, number)
          [kind, name, number]
        end
      end

      def made_up(kind, number)
        return if %i[nokey noblock].include?(kind)
        return :"#{{ rest: "*", keyrest: "**" }[kind]}" if ANONYMOUS && %i[rest keyrest].include?(kind)

        :"__tracepoint_#{number}"
      end

      def kind(kind)
        @list.select { |it| it.first == kind }
      end

      def anonymous?(parameter)
        %i[* ** &].include?(parameter[1])
      end

      def flag(parameter)
        "__tracepoint_d#{parameter[2]}"
      end

      # A default records that the argument is missing, so that the method's own default
      # applies. For a keyword it is a literal, which runs no code.
      def declaration(kind, name, number)
        default = "(__tracepoint_d#{number} = true; nil)"
        case kind
        when :req then destructured?(name) ? "(*#{name})" : name.to_s
        when :opt then "#{name} = #{default}"
        when :rest then "*#{name unless name == :*}"
        when :keyreq then "#{name}:"
        when :key then "#{name}: #{NONE}"
        when :keyrest then "**#{name unless name == :**}"
        when :block then "&#{name unless name == :&}"
        when :nokey then "**nil"
        when :noblock then "&nil"
        end
      end

      # `def pay((cents, currency))` has a parameter without a name.
      def destructured?(name)
        @destructures && name.start_with?("__tracepoint_")
      end

      def read(name)
        RESERVED.include?(name) ? "::Kernel.binding.local_variable_get(:#{name})" : name.to_s
      end

      # In this order, the comparison calls neither methods of the argument nor ours.
      def none(parameter)
        "#{NONE} == #{read(parameter[1])}"
      end

      def pair(parameter)
        "#{parameter[1]}: #{read(parameter[1])}"
      end

      def blocks(block)
        named = kind(:block).map { |it| "&#{it[1] unless anonymous?(it)}" }
        named.empty? && block ? ["&#{block}"] : named
      end

      # Build an expression per possible number of optional arguments.
      def each_count
        optional = kind(:opt)
        cases = optional.each_with_index.map { |it, given| "#{flag(it)} ? #{yield given} : " }
        "#{cases.join}#{yield optional.size}"
      end

      def positional(given)
        optional = kind(:opt)
        @list.filter_map do |kind, name,|
          case kind
          when :req then name.to_s
          when :opt then name.to_s if optional.index { |it| it[1] == name } < given
          when :rest then "*#{name unless name == :*}" if given == optional.size
          end
        end
      end

      def given_keywords
        "__tracepoint_k = {}; #{kind(:key).map { |it| "__tracepoint_k[:#{it[1]}] = #{read(it[1])} unless #{none(it)}" }.join("; ")}"
      end
    end
    private_constant :Parameters
  end
end
