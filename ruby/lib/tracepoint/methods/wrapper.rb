# frozen_string_literal: true

module Tracepoint
  module Methods
    # Spans of methods by number, used by the wrappers' code.
    # @api private
    module Spans
    end

    # A method and its replacement while it is traced. The original stays in the same class
    # as a private method with a hidden name, so `super` and `__method__` in it keep their
    # meaning.
    class Wrapper
      VISIBILITIES = %i[public protected private].freeze

      # @return [Module]
      attr_reader :owner
      # @return [Symbol]
      attr_reader :name
      # @return [String, nil]
      attr_reader :ruby_name
      # @return [UnboundMethod]
      attr_reader :original

      def initialize(owner, name, ruby_name)
        @owner = owner
        @name = name
        @ruby_name = ruby_name
        @original = Lookup.method(owner, name)
        @inherited = !Lookup.own?(owner, name)
        @installed = @hidden = nil
      end

      # @return [Parameters]
      def parameters
        @parameters ||= Parameters.new(@original.parameters, destructures: Lookup.def?(@original))
      end

      # @param number [Integer] number of the span
      # @param hidden [Symbol] the original's other name
      # @param values [Array<String>] expressions for the span's arguments
      def install(number, hidden, values)
        @hidden = hidden
        visibility = VISIBILITIES.find { |it| owner.__send__(:"#{it}_method_defined?", name) }
        keep_original unless @inherited
        file, line = @original.source_location
        quietly { owner.class_eval(code(number, values), file || "(tracepoint)", line || 1) }
        owner.__send__(:ruby2_keywords, name) if parameters.ruby2_keywords?
        owner.__send__(visibility, name)
      ensure
        found = Lookup.method(owner, name)
        @installed = found unless found == @original
      end

      # @return [Symbol, nil] the hidden name, if an earlier trace left the same original
      #   here: repeated tracing and untracing must not accumulate methods
      def hidden_as(other)
        @hidden if owner.equal?(other.owner) && @hidden && !@inherited && Lookup.method(owner, @hidden) == other.original
      end

      # @param names [Array<Symbol, String>] none: any name
      def of?(other, names)
        owner.equal?(other) && (names.empty? || names.map(&:to_sym).include?(name))
      end

      # Return whether the class still has this wrapper under that name.
      def current?
        @installed && Lookup.own?(owner, name) && Lookup.method(owner, name) == @installed
      end

      # The hidden original stays, because aliases of the wrapper may call it. An alias
      # takes the visibility of its original. So the original gets the right visibility
      # first, and other threads never see the method with a wrong one.
      def remove
        return unless current?
        return owner.__send__(:remove_method, name) if @inherited

        visibility = VISIBILITIES.find { |it| owner.__send__(:"#{it}_method_defined?", name) }
        owner.__send__(visibility, @hidden)
        quietly { owner.__send__(:alias_method, name, @hidden) }
      ensure
        owner.__send__(:private, @hidden) if visibility
      end

      private

      # `alias_method` would take a prepended module's method, and in a module creates an
      # entry that is slower to call. `define_method` loses the origin of an alias of an
      # inherited method.
      def keep_original
        if @original.original_name == name
          owner.__send__(:define_method, @hidden, @original)
        else
          owner.__send__(:alias_method, @hidden, name)
        end
        owner.__send__(:private, @hidden)
      end

      # Suppress the warning about a redefined method, which is intended here.
      def quietly
        verbose = $VERBOSE
        $VERBOSE = nil
        yield
      ensure
        $VERBOSE = verbose
      end

      # Keep everything on one line, the line of the original.
      def code(number, values)
        span = "::Tracepoint::Methods::Spans::S#{number}"
        target = @inherited ? "super" : @hidden.to_s
        body = if @inherited || parameters.block?
                 "return #{call(target)} unless #{watched(number, span)}; #{measure(span, values, call(target))}"
               else
                 block = call(target, "__tracepoint_b")
                 "#{unless_watched(number, span, call(target), block)}; #{measure(span, values, block)}"
               end
        "def #{name}(#{parameters}); #{body}; end"
      end

      def call(target, block = nil)
        "(#{parameters.call(target, block)})"
      end

      def measure(span, values, call)
        "#{span}.measure(#{values.join(", ")}) { #{call} }"
      end

      # A JIT calls C methods faster than it reads global variables.
      def watched(number, span)
        jit? ? "#{span}.enabled?" : global("__tracepoint_#{number}", "true")
      end

      # If the method does not name its block, only C code can get the block to pass on.
      def unless_watched(number, span, without, with)
        block = "__tracepoint_b = #{global("__tracepoint_block", YIELDER)}"
        watched = jit? ? "#{span}.enabled? || defined?(yield)" : global("__tracepoint_b#{number}", "true")
        "return #{without} unless #{watched}; #{block}; return #{with} unless #{watched(number, span)}"
      end

      # With `**k`, Ruby 2.7 would destructure an Array that is yielded.
      YIELDER = "(defined?(yield) ? ::Kernel.proc { |*a| yield(*a) }.ruby2_keywords : nil)"
      private_constant :YIELDER

      # Only the main Ractor can read global variables.
      def global(name, otherwise)
        defined?(Ractor) ? "($#{name} rescue #{otherwise})" : "$#{name}"
      end

      def jit?
        defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?
      end
    end
    private_constant :Wrapper

    # Finds a class's own methods, below prepended modules.
    module Lookup
      module_function

      def own?(owner, name)
        [owner.instance_methods(false), owner.private_instance_methods(false)].any? { |names| names.include?(name) }
      end

      # @return [UnboundMethod]
      # @raise [NameError]
      def method(owner, name)
        prepended = owner.ancestors.take_while { |it| !it.equal?(owner) }
        found = top = owner.instance_method(name)
        found = found.super_method while found && prepended.include?(found.owner)
        found || raise(NameError.new("#{name} is a method of #{top.owner}, which is prepended to #{owner}: trace it there", name))
      end

      # Return public methods with a body, without attr_reader and the like.
      def traceable(owner)
        owner.public_instance_methods(false).reject do |name|
          method = method(owner, name)
          method.source_location && !ruby?(method)
        end
      end

      # Return whether `def` made it. In a block, `it` is also a parameter without a name.
      def def?(method)
        ruby?(method) && !(defined?(RubyVM::InstructionSequence) && RubyVM::InstructionSequence.of(method).label.start_with?("block "))
      end

      # Return whether it has a body in Ruby.
      def ruby?(method)
        return !method.source_location.nil? unless defined?(RubyVM::InstructionSequence)

        !RubyVM::InstructionSequence.of(method).nil?
      end
    end
    private_constant :Lookup
  end
end
